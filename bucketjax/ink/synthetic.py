"""Synthetic handwriting: lines of text in single-stroke fonts, each writer with a hand.

It needs no data: the letters are Hershey's (A. V. Hershey 1967, "Calligraphy for Computers", by way
of the package Hershey-Fonts), the words a short list of common English ones. It is a stand-in that
anyone can run, not a model of handwriting.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from bucketjax.ink.ink import Ink

__all__ = ["WORDS", "write_lines"]

# Fonts whose letters are drawn with single strokes.
_FONTS = ("futural", "rowmans", "scripts", "cursive")
_LONGEST = 12
_SAMPLES_PER_SECOND = 100.0

WORDS = tuple(
    """
    the of and to in is that for it was on are as with his they at be this have from or one had by
    but not what all were we when your can said there use an each which she do how their if will up
    other about out many then them these so some her would make like him into time has look two more
    write go see number no way could people my than first water been call who oil its now find long
    down day did get come made may part over new sound take only little work know place year live me
    back give most very after thing our just name good sentence man think say great where help
    through much before line right too mean old any same tell boy follow came want show also around
    form three small set put end does another well large must big even such because turn here why
    ask went men read need land different home us move try kind hand picture again change off play
    spell air away animal house point page letter mother answer found study still learn should
    world
    """.split()
)


class _Hand(NamedTuple):
    """How one writer writes."""

    font: str
    slant: float  # shear of x by y
    width: float  # letters' width, relative
    size: float  # tablet units per font unit
    spacing: float  # extra distance between letters, font units
    jitter: float  # how far a letter strays, font units
    tremor: float  # how far the pen strays along the path, font units
    speed: float  # font units per second


def write_lines(num_lines: int, *, seed: int, num_writers: int = 40) -> list[Ink]:
    """Lines of 1 to 12 words, most of them short, by `num_writers` hands.

    The number of words is geometric with mean 2.9 or so, so that padding all to the longest line
    makes about three quarters of the work padding. The same arguments give the same ink.

    Args:
      num_lines: how many lines, at least 1.
      seed: of everything that is drawn.
      num_writers: how many hands; line k is written by hand k modulo this.

    Raises:
      ValueError: a number below 1, or a negative seed.

    >>> ink = write_lines(3, seed=0)[2]
    >>> ink.writer, len(ink.strokes) > 1, all(word in WORDS for word in ink.label.split())
    ('synthetic/2', True, True)
    """
    for name, value in (("num_lines", num_lines), ("num_writers", num_writers)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1; got {value}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0; got {seed}")
    rng = np.random.default_rng(seed)
    hands = [_draw_hand(rng) for _ in range(num_writers)]
    inks = []
    for line in range(num_lines):
        count = min(int(rng.geometric(0.35)), _LONGEST)
        text = " ".join(WORDS[number] for number in rng.integers(len(WORDS), size=count))
        writer = line % num_writers
        inks.append(_write(text, hands[writer], f"synthetic/{writer}", rng))
    return inks


def _draw_hand(rng: np.random.Generator) -> _Hand:
    return _Hand(
        font=_FONTS[int(rng.integers(len(_FONTS)))],
        slant=rng.uniform(-0.15, 0.45),
        width=rng.uniform(0.8, 1.25),
        size=rng.uniform(5.0, 15.0),
        spacing=rng.uniform(-1.0, 2.0),
        jitter=rng.uniform(0.1, 0.6),
        tremor=rng.uniform(0.02, 0.15),
        speed=rng.uniform(60.0, 150.0),
    )


def _write(text: str, hand: _Hand, writer: str, rng: np.random.Generator) -> Ink:
    strokes, times = [], []
    pen, clock = 0.0, 0.0
    drift = rng.normal(0, 0.01)
    for character in text:
        outlines, advance = _glyph(hand.font, character)
        stray = rng.normal(0, hand.jitter, 2)
        stretch = hand.width * (1 + rng.normal(0, 0.05))
        for outline in outlines:
            points, since = _trace(outline, hand, rng)
            points = points * [stretch, 1.0] + stray + [pen, 0.0]
            points = points + points[:, ::-1] * [hand.slant, drift]
            strokes.append(points * hand.size)
            times.append(clock + since)
            clock = times[-1][-1] + rng.uniform(0.05, 0.2)
        pen += advance * stretch + hand.spacing
    return Ink(tuple(strokes), text, writer, tuple(times))


def _trace(
    outline: np.ndarray, hand: _Hand, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The pen's points along an outline, and seconds since it touched down.

    It starts and ends slowly: the way along the path is a smooth step of time.
    """
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(outline, axis=0).T))])
    seconds = max(along[-1] / hand.speed, 0.02)
    count = max(int(seconds * _SAMPLES_PER_SECOND), 2)
    share = np.linspace(0.0, 1.0, count)
    way = along[-1] * (0.5 * share + 0.5 * share * share * (3 - 2 * share))
    points = np.stack([np.interp(way, along, outline[:, axis]) for axis in (0, 1)], axis=1)
    # Tremor is slow beside the sampling: noise at every fourth point, interpolated.
    knots = max(count // 4, 2)
    noise = rng.normal(0, hand.tremor, (knots, 2))
    at = np.linspace(0.0, 1.0, knots)
    points += np.stack([np.interp(share, at, noise[:, axis]) for axis in (0, 1)], axis=1)
    return points, share * seconds


@functools.cache
def _glyph(font: str, character: str) -> tuple[tuple[np.ndarray, ...], float]:
    """The outlines of a character, y upwards, and how far it moves the pen."""
    glyph = next(iter(_font(font).glyphs_for_text(character)))
    left = glyph.left_offset
    outlines = tuple(
        np.array([[x - left, -y] for x, y in stroke], np.float64) for stroke in glyph.strokes
    )
    return outlines, float(glyph.char_width)


@functools.cache
def _font(name: str):
    from HersheyFonts import HersheyFonts

    font = HersheyFonts()
    font.load_default_font(name)
    return font
