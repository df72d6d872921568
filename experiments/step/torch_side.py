"""The contender torch: its LSTM, packed or padded, and its CTC loss."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from experiments.step.config import Case

Run = Callable[[], None]
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def start(_: int | None) -> dict[str, Any]:
    """Says what there is; torch uses all cores by itself."""
    return {"platform": _DEVICE, "threads": torch.get_num_threads(), "version": torch.__version__}


def wait() -> None:
    """Until the device is done."""
    if _DEVICE == "cuda":
        torch.cuda.synchronize()


def peak() -> float:
    """Floating-point operations per second of a large matrix product on all cores."""
    matrix = torch.ones((2048, 2048), device=_DEVICE)
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        torch.matmul(matrix, matrix)
        wait()
        seconds.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(seconds)


def build(case: Case, contender: str, _: int) -> tuple[Run, int | None]:
    """(runs it once, to the end; None, as torch does not say its memory beforehand)."""
    packed = contender == "torch packed"
    rng = np.random.default_rng(0)
    shape = case.batch, case.frames, case.channels
    features = torch.from_numpy(rng.normal(size=shape).astype(np.float32)).to(_DEVICE)
    lengths = torch.full((case.batch,), case.frames)
    labels = torch.from_numpy(rng.integers(1, case.classes, size=(case.batch, case.label)))
    batch = features, lengths, labels.to(_DEVICE), torch.full((case.batch,), case.label)
    if case.part == "lstm":
        return _lstm(case, batch, packed), None
    if case.part == "ctc":
        return _ctc(case, batch), None
    model = Model(case.channels, case.hidden, case.layers, case.classes, packed)
    step = make_step(model)

    def run() -> None:
        step(*batch)
        wait()

    return run, None


def _lstm(case: Case, batch: Any, packed: bool) -> Run:
    lstm = torch.nn.LSTM(
        case.channels, case.hidden, case.layers, bidirectional=True, batch_first=True
    ).to(_DEVICE)
    features = batch[0].clone().requires_grad_()

    def run() -> None:
        lstm.zero_grad(set_to_none=True)
        features.grad = None
        (_outputs(lstm, features, batch[1], packed) ** 2).sum().backward()
        wait()

    return run


def _outputs(lstm: Any, features: Any, lengths: Any, packed: bool) -> Any:
    if not packed:
        return lstm(features)[0]
    pack = torch.nn.utils.rnn.pack_padded_sequence(
        features, lengths, batch_first=True, enforce_sorted=False
    )
    return torch.nn.utils.rnn.pad_packed_sequence(lstm(pack)[0], batch_first=True)[0]


def _ctc(case: Case, batch: Any) -> Run:
    shape = case.batch, case.frames, case.classes
    logits = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    logits = torch.from_numpy(logits).to(_DEVICE).requires_grad_()

    def run() -> None:
        logits.grad = None
        _loss(logits, *batch[1:]).backward()
        wait()

    return run


def _loss(logits: Any, lengths: Any, labels: Any, label_lengths: Any) -> Any:
    return torch.nn.functional.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1), labels, lengths, label_lengths, reduction="sum"
    )


class Model(torch.nn.Module):
    """The recogniser: bidirectional LSTM layers and a linear one."""

    def __init__(self, channels: int, hidden: int, layers: int, classes: int, packed: bool):
        super().__init__()
        self.lstm = torch.nn.LSTM(channels, hidden, layers, bidirectional=True, batch_first=True)
        self.output = torch.nn.Linear(2 * hidden, classes)
        self.packed = packed
        self.to(_DEVICE)

    def forward(self, features: Any, lengths: Any) -> Any:
        """Logits of every frame."""
        return self.output(_outputs(self.lstm, features, lengths, self.packed))


def make_step(model: Model) -> Callable[..., float]:
    """A step of Adam with clipped gradients on a batch; returns its mean loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(features: Any, lengths: Any, labels: Any, label_lengths: Any) -> float:
        optimizer.zero_grad(set_to_none=True)
        logits = model(features, lengths)
        loss = _loss(logits, lengths, labels, label_lengths) / len(lengths)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return step
