"""What tests of the conformance suite share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.step import Step
from esa_cli.evaluation.conformance import PluginCheckResult, check
from esa_cli.methods import registry


def failed(findings: list[PluginCheckResult]) -> dict[str, str]:
    """What did not pass, and why; a finding has a detail exactly when it did not."""
    assert all(finding.passed == (finding.detail == "") for finding in findings)
    return {finding.check: finding.detail for finding in findings if not finding.passed}


def examine(kind: str, cls: type) -> dict[str, str]:
    registry.register(kind, "under-test")(dataclass(frozen=True)(cls))
    return failed(check(kind, "under-test"))


def first(step: Step, budget: int) -> Tensor:
    return torch.arange(min(budget, step.middle))
