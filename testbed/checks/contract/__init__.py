"""The contract of memory policies as reusable checks: `check_policy` for anyone's class."""

from testbed.checks.contract.clauses import ClauseBroken
from testbed.checks.contract.search import check_policy

__all__ = ["ClauseBroken", "check_policy"]
