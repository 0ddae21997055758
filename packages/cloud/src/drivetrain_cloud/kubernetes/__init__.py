"""Training jobs on Kubernetes."""

from __future__ import annotations
