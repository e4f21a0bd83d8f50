"""The data module of MNIST with scikit-learn's digits, in images of 28 x 28, without a split for validation."""

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, TensorDataset

#: Digits of the training set; the others are the test set.
_TRAINING = 1200


class MNISTDataModule(pl.LightningDataModule):
    """Shuffled batches of a fixed size, as the module of lightning-bolts has by default."""

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__()
        self.batch_size = batch_size
        digits = load_digits()
        images = interpolate(torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16.0, size=28)
        rows, targets = (slice(None, _TRAINING), slice(_TRAINING, None)), torch.tensor(digits.target)
        self.dataset_train, self.dataset_test = (TensorDataset(images[part], targets[part]) for part in rows)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset_train, batch_size=self.batch_size, shuffle=True)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset_test, batch_size=self.batch_size)
