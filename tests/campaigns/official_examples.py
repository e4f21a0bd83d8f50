"""The private trainings that libraries ship as examples, and what their audit must say: see ``official.py``."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Project:
    """A repository, and the commit whose files run."""

    repository: str
    commit: str


PROJECTS = {
    "opacus": Project("github.com/pytorch/opacus", "4d0ebc84613d214fbfd37fbfd1390e3747a625ce"),
    "nvflare": Project("github.com/NVIDIA/NVFlare", "f3b7c1bffdfed90338d695a67b52a46d8bc4d28c"),
    "flower": Project("github.com/adap/flower", "fdef7afb1dca3030553be302366cfd285ed6632c"),
    "jax-privacy": Project("github.com/google-deepmind/jax_privacy", "8967688c26d46f3b74bfdfe61ef1f984b887abab"),
    "dp-transformers": Project("github.com/microsoft/dp-transformers", "f9fae445b1d3bb28355dbaac6720c007abb974ce"),
    "fastdp": Project("github.com/awslabs/fast-differential-privacy", "3d5cc561aa337c72f79873ccc4fe8b900b5493b5"),
    "ctabgan": Project("github.com/Team-TUD/CTAB-GAN-Plus-DP", "6507b8a1638702ecda24e1a4dd8fddd1c40e8125"),
    "handcrafted": Project("github.com/ftramer/Handcrafted-DP", "6568e8f74d93b5e39c5e7a612962ddf34acaa22c"),
}

#: The verdict about an example without a recording: the recorder says what is missing.
REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Example:
    """A script of a project, and what the audit must say about it.

    Attributes:
        project: Its key in ``PROJECTS``.
        script: The path in the repository; the cells of a notebook are joined.
        modules: Folders of the repository with packages that the script imports, before installed ones.
        entry: What runs in the folder of the script: a file, or -m and a module; empty for the script.
        client: Whether the script has clients of a federation.
        records_itself: Whether a substitution imports ``dpspec.auto``, because other processes train; implies client.
        arguments: Of the script.
        environment: Variables of the script.
        substitutions: Texts of the script, replaced, each with the reason. Each text must occur.
        files: Files that the script reads, by name, with their content.
        stand_ins: The folders of ``stand_ins/`` whose modules come before installed ones.
        printed: A regular expression; its group is the last printed epsilon.
        epsilon: The claim; None for the printed epsilon, which may be from before the last step.
        delta: The delta of the claim.
        check: Further options of ``dpspec check``.
        verdict: Of the recording, or ``REFUSED``.
        rules: The names of exactly the rules that fire.
        words: A regular expression that the check's output contains, or the recorder's if the verdict is ``REFUSED``.
    """

    project: str
    script: str
    modules: Sequence[str] = ()
    entry: Sequence[str] = ()
    client: bool = False
    records_itself: bool = False
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    substitutions: Sequence[tuple[str, str, str]] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    stand_ins: Sequence[str] = ()
    printed: str = r"ε = ([\d.]+)"
    epsilon: float | None = None
    delta: float = 1e-5
    check: Sequence[str] = ()
    verdict: str = "proved"
    rules: Sequence[str] = ()
    words: str = ""


def _names(seed: int) -> dict[str, str]:
    """Invented names of three languages, 400 each, in the place of a download."""
    drawn = random.Random(seed)
    parts = {"Aran": "ka lo mi ner tas", "Belic": "sch von der ger uld", "Corun": "ez quo pil ran tia"}
    return {
        f"names/{language}.txt": "\n".join("".join(drawn.choices(syllables.split(), k=2 + i % 4)) for i in range(400))
        for language, syllables in parts.items()
    }


_IN_HERE = ("--device", "cpu", "--data-root", ".")
_CIFAR10 = (*_IN_HERE, "--epochs", "2", "--batch-size", "120", "--workers", "0")

#: Of examples that read numbers inside of a step, or whose trainer calls the model below Opacus' hooks: nothing is
#: replayed, so a person answers for the sensitivity.
_NOT_REPLAYED = ("--accept", "not-replayed")


def _table() -> str:
    """An invented table of 600 people with two classes."""
    drawn = random.Random(3)
    people = [(drawn.randint(18, 80), drawn.choice(["clerk", "cook", "pilot"])) for _ in range(600)]
    rows = [f"{age},{work},{'high' if age > 45 else 'low'}" for age, work in people]
    return "\n".join(["age,work,income", *rows, ""])


#: Of the development version of optax, which jax-privacy's examples were written for.
_OF_OPTAX = (
    "from absl import app\n",
    "from typing import Any\n\nimport optax\nfrom absl import app\n\noptax.ArrayTree = Any\n",
    "not in optax 0.2.8",
)

#: What the recorder says about jax-privacy.
_WORDS_OF_JAX = "jax-privacy adds the noise inside of compiled functions.*one call steps.report"

#: For Lightning 2 and torchmetrics 1, which the example is older than.
_OF_LIGHTNING = (
    ("from pytorch_lightning.utilities.cli import LightningCLI", "LightningCLI = None", "not in Lightning 2"),
    ("torchmetrics.Accuracy()", 'torchmetrics.Accuracy(task="multiclass", num_classes=10)', "torchmetrics 1"),
    (
        "self.trainer._data_connector._train_dataloader_source.dataloader()",
        "self.trainer.fit_loop._data_source.dataloader()",
        "a private name of Lightning, which changed",
    ),
    ("max_epochs=10,\n        enable", "max_epochs=2,\n        enable", "shorter"),
)

EXAMPLES = {
    "mnist": Example(
        project="opacus",
        script="examples/mnist.py",
        stand_ins=("images",),
        arguments=(*_IN_HERE, "-n", "2"),
    ),
    "cifar10": Example(
        project="opacus",
        script="examples/cifar10.py",
        stand_ins=("images",),
        arguments=_CIFAR10,
        epsilon=1.71,
        check=("--public", "learning_rate", *_NOT_REPLAYED),
        rules=("not-replayed",),
    ),
    "cifar10, per layer": Example(
        project="opacus",
        script="examples/cifar10.py",
        stand_ins=("images",),
        arguments=(*_CIFAR10, "--clip_per_layer"),
        epsilon=1.71,
        check=("--public", "learning_rate", *_NOT_REPLAYED),
        rules=("not-replayed",),
    ),
    "cifar10, functorch": Example(
        project="opacus",
        script="examples/cifar10.py",
        stand_ins=("images",),
        arguments=(*_CIFAR10, "--grad_sample_mode", "functorch"),
        epsilon=1.71,
        check=("--public", "learning_rate", *_NOT_REPLAYED),
        rules=("not-replayed",),
    ),
    "cifar10, no_op": Example(
        project="opacus",
        script="examples/cifar10.py",
        stand_ins=("images",),
        arguments=(*_CIFAR10, "--grad_sample_mode", "no_op"),
        epsilon=1.71,
        check=("--public", "learning_rate"),
        verdict="open",
        words="gradient-parameters",
    ),
    "dcgan": Example(
        project="opacus",
        script="examples/dcgan.py",
        stand_ins=("images",),
        arguments=(
            *_IN_HERE,
            *("--workers", "0", "--epochs", "2", "--batch-size", "8"),
            *("--ndf", "4", "--ngf", "4"),
        ),
        substitutions=(
            ("inplace=True", "inplace=False", "activations in place fail under backward hooks, also without dpspec"),
        ),
        printed=r"\(ε = ([\d.]+)",
        check=_NOT_REPLAYED,
        rules=("guessable-seed", "second-optimizer", "not-replayed"),
    ),
    "char-lstm": Example(
        project="opacus",
        script="examples/char-lstm-classification.py",
        arguments=("--device", "cpu", "--data-root", "names", "--epochs", "4", "--batch-size", "80"),
        files=_names(1),
        delta=8e-5,
        rules=("varying-padding", "duplicate-records"),
    ),
    "imdb": Example(
        project="opacus",
        script="examples/imdb.py",
        stand_ins=("reviews",),
        arguments=(*_IN_HERE, "-n", "2", "-j", "0"),
        verdict="deviates",
        words="in a shuffled order|Poisson",
    ),
    "mnist_lightning": Example(
        project="opacus",
        script="examples/mnist_lightning.py",
        stand_ins=("lightning",),
        environment={"LIGHTNING_VANILLA": "true"},
        substitutions=_OF_LIGHTNING,
        printed=r"epsilon:\s*([\d.]+)",
        epsilon=2.56,
        check=_NOT_REPLAYED,
        rules=("not-replayed",),
    ),
    "mnist_lightning, default entry": Example(
        project="opacus",
        script="examples/mnist_lightning.py",
        stand_ins=("lightning",),
        substitutions=(
            *_OF_LIGHTNING,
            (
                "        cli_main()",
                "        pl.Trainer(max_epochs=2).fit(LitSampleConvNetClassifier(), MNISTDataModule(batch_size=64))",
                "Lightning 2 has another command line; the data module is the one that it gives the trainer",
            ),
        ),
        printed=r"epsilon:\s*([\d.]+)",
        epsilon=2.56,
        verdict="deviates",
        words="in a shuffled order|Poisson",
    ),
    "hello-dp": Example(
        project="nvflare",
        script="examples/hello-world/hello-dp/client.py",
        entry=("job.py",),
        records_itself=True,
        stand_ins=("transactions",),
        arguments=("--num_rounds", "3", "--epochs", "2", "--batch_size", "40"),
        substitutions=(
            ("from sklearn.datasets import fetch_openml", "from transactions import fetch_openml", "no download"),
            (
                "import argparse\n",
                "import argparse\nimport os\n\nif 'DPSPEC_RECORD' in os.environ:\n    import dpspec.auto\n",
                "NVFlare starts the clients' processes",
            ),
            (
                '__main__":\n    main()\n',
                "__main__\":\n    main()\n    if 'DPSPEC_RECORD' in os.environ:\n        dpspec.auto.end()\n",
                "these processes end without Python's exit functions",
            ),
        ),
        printed=r"Cumulative ε = ([\d.]+)",
        rules=("standardized-features",),
    ),
    "Flower with Opacus": Example(
        project="flower",
        script="examples/opacus/opacus_fl/client_app.py",
        entry=("-m", "flower_in_one_process"),
        client=True,
        stand_ins=("partitions", "images"),
        arguments=(
            *("opacus_fl.server_app", "opacus_fl.client_app", "3"),
            *("num-server-rounds=2", "target-delta=1e-5", "max-grad-norm=1.0"),
        ),
        printed=r"max_epsilon': '([\d.e+]+)'",
        verdict="deviates",
        words="accountant that starts again",
    ),
    "Flower with noise of the server": Example(
        project="flower",
        script="examples/fl-dp-sa/fl_dp_sa/client_app.py",
        entry=("-m", "flower_in_one_process"),
        client=True,
        stand_ins=("partitions", "images"),
        arguments=(
            *("fl_dp_sa.server_app", "fl_dp_sa.client_app", "20"),
            *("noise-multiplier=0.2", "clipping-norm=10", "num-sampled-clients=20"),
            *("num-shares=7", "reconstruction-threshold=4"),
        ),
        verdict=REFUSED,
        words="RecordedStrategy",
    ),
    "jax-privacy, logistic regression": Example(
        project="jax-privacy",
        script="examples/dp_logistic_regression.py",
        modules=("jax_privacy",),
        substitutions=(
            _OF_OPTAX,
            ("USERS = 10_000", "USERS = 2_000", "shorter"),
            ("EXPECTED_BATCH_SIZE = 1000", "EXPECTED_BATCH_SIZE = 64", "shorter"),
            ("ITERATIONS = 500", "ITERATIONS = 20", "shorter"),
            ("optimal_loss + 0.2", "optimal_loss + 2.0", "fewer iterations"),
        ),
        verdict=REFUSED,
        words=_WORDS_OF_JAX,
    ),
    "jax-privacy, transformer": Example(
        project="jax-privacy",
        script="examples/dp_sgd_transformer.py",
        modules=("jax_privacy",),
        stand_ins=("plays",),
        substitutions=(
            _OF_OPTAX,
            ("max_len = 128", "max_len = 16", "shorter"),
            ("iterations = 100", "iterations = 5", "shorter"),
            ("expected_batch_size = 1000", "expected_batch_size = 32", "shorter"),
            ("loss < 4.8", "loss < 8.0", "fewer iterations"),
        ),
        verdict=REFUSED,
        words=_WORDS_OF_JAX,
    ),
    "dp-transformers": Example(
        project="dp-transformers",
        script="examples/nlg-reddit/sample-level-dp/fine-tune-dp.py",
        modules=("src/dp_transformers",),
        stand_ins=("posts",),
        arguments=(
            *("--output_dir", "trained", "--per_device_train_batch_size", "16", "--num_train_epochs", "1"),
            *("--target_epsilon", "8", "--per_sample_max_grad_norm", "1.0", "--sequence_len", "16"),
            *("--report_to", "none", "--use_cpu", "true", "--remove_unused_columns", "false", "--save_strategy", "no"),
        ),
        substitutions=(
            ("import datasets\n", "import datasets\nimport posts\n", "no download"),
            (
                "transformers.AutoModelForCausalLM.from_pretrained(args.model.model_name)",
                "posts.model()",
                "no download",
            ),
            ("datasets.load_dataset('reddit', split=\"train[:500000]\")", "posts.posts()", "no download"),
            ("transformers.AutoTokenizer.from_pretrained(args.model.model_name)", "posts.tokenizer()", "no download"),
            ("num_proc=8, ", "", "one process"),
            ("model.cuda()", "model", "no GPU"),
        ),
        verdict=REFUSED,
        words="the script made Opacus' optimizer without make_private",
    ),
    "fastDP": Example(
        project="fastdp",
        script="examples/image_classification/CIFAR_TIMM.py",
        modules=("fastDP",),
        stand_ins=("images", "pretrained"),
        arguments=("--epochs", "1", "--bs", "100", "--mini_bs", "50", "--dimension", "32", "--model", "small"),
        substitutions=(
            ('"cuda:0"', '"cpu"', "no GPU"),
            ("import timm", "import small_networks as timm", "no download"),
            ("num_workers=4", "num_workers=0", "one process"),
        ),
        verdict=REFUSED,
        words="fastDP clips and sums inside of backward passes",
    ),
    "CTAB-GAN+": Example(
        project="ctabgan",
        script="model/synthesizer/ctabgan_synthesizer.py",
        modules=("model",),
        entry=("experiment.py",),
        substitutions=(
            ("self.private = False", "self.private = True", "the branch with noise"),
            ("batch_size=500", "batch_size=100", "shorter"),
            ("epochs=150", "epochs=2", "shorter"),
            (".cuda()", "", "no GPU"),
        ),
        files={
            "people.csv": _table(),
            "experiment.py": "from model.ctabgan import CTABGAN\n\n"
            'synthesizer = CTABGAN("people.csv", categorical_columns=["work", "income"], mixed_columns={},\n'
            '    general_columns=["age"], integer_columns=["age"], problem_type={"Classification": "income"})\n'
            "synthesizer.fit()\nprint(len(synthesizer.generate_samples()))\n",
        },
        verdict=REFUSED,
        words="A custom loop needs `with dpspec.record",
    ),
    "Handcrafted-DP": Example(
        project="handcrafted",
        script="cnns.py",
        stand_ins=("images",),
        arguments=(*("--dataset", "mnist", "--epochs", "1"), *("--batch_size", "200", "--mini_batch_size", "100")),
        substitutions=(
            ("import get_device, train, test", "import train, test", "it accepts a GPU only"),
            ("device = get_device()", 'device = torch.device("cpu")', "it accepts a GPU only"),
        ),
        files={
            "kymatio/__init__.py": "",
            "kymatio/torch.py": "Scattering2D = None\n",
            "log.py": "class Logger:\n    def __init__(self, folder): pass\n"
            "    def log_epoch(self, *values): print(*values)\n    log_scalar = log_epoch\n",
        },
        verdict=REFUSED,
        words="a version of Opacus without make_private",
    ),
    "tutorial of images": Example(
        project="opacus",
        script="tutorials/building_image_classifier.ipynb",
        stand_ins=("images",),
        substitutions=(
            ("EPOCHS = 20", "EPOCHS = 2", "shorter"),
            ("BATCH_SIZE = 512", "BATCH_SIZE = 128", "fewer records"),
            ("MAX_PHYSICAL_BATCH_SIZE = 128", "MAX_PHYSICAL_BATCH_SIZE = 32", "fewer records"),
            ("tqdm.notebook", "tqdm", "not in a notebook"),
        ),
        epsilon=50.0,
        check=_NOT_REPLAYED,
        rules=("not-replayed",),
    ),
    "tutorial of names": Example(
        project="opacus",
        script="tutorials/building_lstm_name_classifier.ipynb",
        substitutions=(
            ("download_and_extract(NAMES_DATASET_URL, DATA_DIR)", "", "no download"),
            ("os.path.join(DATA_DIR, 'data', 'names')", "DATA_DIR", "no download"),
            ("import requests", "", "unused"),
            ("epochs = 50", "epochs = 4", "shorter"),
            ("batch_size = 800", "batch_size = 80", "fewer records"),
        ),
        files=_names(2),
        delta=8e-5,
        rules=("varying-padding", "duplicate-records"),
    ),
}

#: Batches of equal size in a shuffled order, under the accountant of Poisson batches.
_SHUFFLED = "max_grad_norm={},\n                poisson_sampling=False,"

#: The sum of clipped gradients as it is.
_NOISELESS = "{0}.add_noise = lambda: [setattr(p, 'grad', p.summed_grad.clone()) for p in {0}.params]"

#: Each record is drawn twice as often as the accountant assumes.
_TWICE = "{}.batch_sampler.sample_rate *= 2"

#: Faults by name: for three examples a text of the script and its replacement, and words that the check must use.
FAULTS: dict[str, tuple[dict[str, tuple[str, str]], str]] = {
    "shuffled batches": (
        {
            "mnist": (
                "max_grad_norm=args.max_per_sample_grad_norm,",
                _SHUFFLED.format("args.max_per_sample_grad_norm"),
            ),
            "char-lstm": (
                "max_grad_norm=args.max_per_sample_grad_norm,",
                _SHUFFLED.format("args.max_per_sample_grad_norm"),
            ),
            "dcgan": ("max_grad_norm=opt.max_per_sample_grad_norm,", _SHUFFLED.format("opt.max_per_sample_grad_norm")),
        },
        "shuffle|Poisson|in order",
    ),
    "mixup": (
        {
            "mnist": (
                "        optimizer.zero_grad()\n",
                "        optimizer.zero_grad(); data = 0.6 * data + 0.4 * data.flip(0)\n",
            ),
            "char-lstm": ("loss = criterion(logits, y)", "loss = criterion(0.6 * logits + 0.4 * logits.flip(0), y)"),
            "dcgan": ("output = netD(real_data)", "output = netD(0.6 * real_data + 0.4 * real_data.flip(0))"),
        },
        "other records",
    ),
    "statistics of the batch": (
        {
            "mnist": (
                "        optimizer.zero_grad()\n",
                "        optimizer.zero_grad(); data = data - data.mean(0)\n",
            ),
            "char-lstm": ("loss = criterion(logits, y)", "loss = criterion(logits - logits.mean(0), y)"),
            "dcgan": ("output = netD(real_data)", "output = netD(real_data - real_data.mean(0))"),
        },
        "other records",
    ),
    "no noise": (
        {
            "mnist": ("            train(args,", f"            {_NOISELESS.format('optimizer')}; train(args,"),
            "char-lstm": ('print(f"Train stats', f'{_NOISELESS.format("optimizer")}; print(f"Train stats'),
            "dcgan": ("data_bar = tqdm(", f"{_NOISELESS.format('optimizerD')}; data_bar = tqdm("),
        },
        "noise",
    ),
    "batches twice as large as accounted": (
        {
            "mnist": ("        for epoch in", f"        {_TWICE.format('train_loader')}\n        for epoch in"),
            "char-lstm": ('print(f"Train stats', f'{_TWICE.format("train_loader")}; print(f"Train stats'),
            "dcgan": ("for epoch in", f"{_TWICE.format('dataloader')}\nfor epoch in"),
        },
        "rate|records in each batch|size",
    ),
}


def with_faults() -> dict[str, Example]:
    """Each example that ``FAULTS`` names, with each fault."""
    return {
        f"{name}, {fault}": replace(
            EXAMPLES[name],
            substitutions=(*EXAMPLES[name].substitutions, (old, new, "the fault")),
            verdict="deviates",
            words=words,
        )
        for fault, (places, words) in FAULTS.items()
        for name, (old, new) in places.items()
    }
