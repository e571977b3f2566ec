"""A Lightning program as its users write them; the backend's name is the strategy's argument.

torchrun --nproc-per-node N lightning_app.py BACKEND FOLDER leaves what each rank ends with in
FOLDER/rank<r>.pt.
"""

import os
import sys
import warnings

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS_AN_EPOCH, BATCH, EPOCHS = 8, 16, 3


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        # no bias here: its gradient would be rounding noise, of which Adam makes steps
        self.network = nn.Sequential(
            nn.Linear(20, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)
        )
        self.losses = []

    def step(self, batch):
        inputs, labels = batch
        return nn.functional.cross_entropy(self.network(inputs), labels)

    def training_step(self, batch, _):
        loss = self.step(batch)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        self.log("validation", self.step(batch), sync_dist=True)  # the mean over ranks

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def data(seed, count):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 20, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].argmax(1))


def main(backend, folder):
    warnings.filterwarnings("ignore", category=UserWarning, module="lightning")
    L.seed_everything(11)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    model = Classifier()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=DDPStrategy(process_group_backend=backend),
        sync_batchnorm=False,
        gradient_clip_val=1.0,
        max_epochs=EPOCHS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(
        model,
        DataLoader(data(1, STEPS_AN_EPOCH * BATCH * ranks), BATCH, shuffle=True),
        DataLoader(data(2, 4 * BATCH * ranks), BATCH),
    )
    trainer.validate(model, DataLoader(data(3, 4 * BATCH * ranks), BATCH), verbose=False)
    torch.save(
        {
            "backend": torch.distributed.get_backend(),
            "parameters": nn.utils.parameters_to_vector(model.parameters()).detach(),
            "losses": torch.tensor(model.losses),
            "validation": trainer.callback_metrics["validation"],
        },
        os.path.join(folder, f"rank{rank}.pt"),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
