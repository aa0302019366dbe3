"""Fitting α and β, and measuring them on ranks."""

from __future__ import annotations

import pytest

from picolib.comm.calibration import Calibration, calibrate, fit_alpha_beta

SIZES = [1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26]


def test_an_exact_line_is_found():
    alpha, beta = fit_alpha_beta(SIZES, [30e-6 + 0.4e-9 * size for size in SIZES])
    assert alpha == pytest.approx(30e-6, rel=1e-6)
    assert beta == pytest.approx(0.4e-9, rel=1e-6)


def test_noise_on_the_largest_message_does_not_drown_the_latency():
    seconds = [30e-6 + 0.4e-9 * size for size in SIZES]
    seconds[-1] *= 1.2  # 5 ms more, 180 times the latency
    alpha, beta = fit_alpha_beta(SIZES, seconds)
    assert alpha == pytest.approx(30e-6, rel=0.1)
    assert beta == pytest.approx(0.4e-9, rel=0.25)


def test_neither_is_ever_negative():
    alpha, beta = fit_alpha_beta([1000, 2000], [1e-6, 3e-6])  # a line that meets the axis below zero
    assert alpha == 0 and 1e-9 < beta < 1.5e-9
    alpha, beta = fit_alpha_beta([1000, 2000], [3e-6, 1e-6])  # a falling one
    assert beta == 0 and 1e-6 < alpha < 3e-6


@pytest.mark.parametrize(
    ("sizes", "seconds"), [([1000], [1.0]), ([1000, 1000], [1.0, 1.0]), ([1, 2], [1.0, 0.0]), ([1, 2], [1.0])]
)
def test_too_little_to_fit_is_refused(sizes, seconds):
    with pytest.raises(ValueError, match="sizes and seconds must be two or more pairs"):
        fit_alpha_beta(sizes, seconds)


def test_what_is_printed_names_both_with_units():
    text = str(Calibration(2, 50e-6, 0.5e-9, (1024, 1 << 20), (51e-6, 580e-6)))
    assert "α = 50.0 µs a message" in text
    assert "1/β = 2.00 GB/s" in text
    assert text.endswith("1,048,576     580.0 µs     574.3 µs")


@pytest.mark.parametrize("world_size", [2, 3])
def test_calibrate_measures_this_machine(world_size):
    found = calibrate(world_size, sizes=[1 << 10, 1 << 16, 1 << 20], rounds=3)
    assert found.world_size == world_size and len(found.seconds) == 3
    assert all(t > 0 for t in found.seconds)
    assert found.alpha > 0 or found.beta > 0


def test_one_rank_or_one_size_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="world_size must be at least 2"):
        calibrate(1)
    with pytest.raises(ValueError, match="sizes must hold at least two different sizes"):
        calibrate(2, sizes=[1024, 1024])
