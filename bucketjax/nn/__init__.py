"""The recogniser's parts: LSTM, CTC, decoding. Needs the extra `handwriting`."""

from bucketjax.nn.ctc import Alignment, align, ctc_loss, feasible
from bucketjax.nn.decoding import collapse, edit_distance, label_errors
from bucketjax.nn.lstm import LSTM, frame_mask
from bucketjax.nn.recognizer import Recognizer

__all__ = [
    "LSTM",
    "Alignment",
    "Recognizer",
    "align",
    "collapse",
    "ctc_loss",
    "edit_distance",
    "feasible",
    "frame_mask",
    "label_errors",
]
