"""Operators over lanes: many clients, each with its own weights, in one kernel launch."""

from __future__ import annotations

from fedflat.kernels.conv import conv2d
from fedflat.kernels.layers import LaneConv2d, use_lane_ops

__all__ = ["LaneConv2d", "conv2d", "use_lane_ops"]
