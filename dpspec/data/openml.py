"""``openml``: data sets of openml.org, fetched by scikit-learn."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpspec.contract import DataError, Dataset, Json, LoadedData
from dpspec.data.columnar import rows
from dpspec.data.files import check_count
from dpspec.data.options import schema
from dpspec.data.remote import FACTS, Remote
from dpspec.data.table import KEYS

if TYPE_CHECKING:
    import numpy as np

DATASET = Dataset(
    kind="openml",
    summary="A data set of openml.org by its number, or by name and version; fetched once, then cached.",
    schema=schema(
        {
            "id": {
                "type": "integer",
                "minimum": 1,
                "description": "The number of the data set, as its page's address shows it. Instead of name and "
                "version.",
            },
            "name": {"type": "string", "minLength": 1, "description": "The data set's name; goes with version."},
            "version": {"type": "integer", "minimum": 1, "description": "Which version of the name."},
            **FACTS,
            **KEYS,
        },
        required=["records", "features", "label", "classes"],
    ),
    source="dpspec.data.openml:Openml",
)


class Openml(Remote):
    """Records in the order that openml.org keeps; a published version of a data set never changes there."""

    def identity(self) -> dict[str, Json]:
        """Number, or name and version; raises ``DataError`` unless exactly one of them is given."""
        given = {key: self.options[key] for key in ("id", "name", "version") if key in self.options}
        if given.keys() not in ({"id"}, {"name", "version"}):
            raise DataError(
                f"openml data is named by id, or by name and version; got {', '.join(given) or 'none of them'}"
            )
        return {"kind": "openml", **given}

    def fetch(self, folder: Path) -> LoadedData:
        """All rows of the data set."""
        import numpy as np

        bunch = fetched(self.identity(), folder)
        check_count(self.what(), bunch.data.shape)
        table = bunch.data if isinstance(bunch.data, np.ndarray) else bunch.data.toarray()
        names = [*bunch.feature_names]

        def column(name: str) -> np.ndarray[Any, Any]:
            values: np.ndarray[Any, Any] = table[:, names.index(name)]
            texts = (bunch.categories or {}).get(name)
            if texts is None:
                return values
            return np.array([None if v != v else texts[int(v)] for v in values], dtype=object)

        x, y = rows(column, self, self.columns(names, self.what()), self.what())
        return LoadedData(train_x=x, train_y=y, test_x=x[:0], test_y=y[:0])

    def what(self, test: bool = False) -> str:
        """The data set."""
        name = f"{self.options.get('name')} version {self.options.get('version')}"
        return f"openml {self.options.get('id', name)}"


def fetched(identity: dict[str, Json], folder: Path) -> Any:
    """scikit-learn's bunch with the label among the columns and categories as numbers; checked by OpenML's MD5."""
    from sklearn.datasets import fetch_openml

    named = {"data_id": identity["id"]} if "id" in identity else {k: identity[k] for k in ("name", "version")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it tries again, and remarks of the site on its data set
        return fetch_openml(
            **named,
            data_home=str(folder),
            target_column=None,
            as_frame=False,
            parser="liac-arff",
            n_retries=1,
        )
