"""Timing, sweeps, calibration and benches."""
