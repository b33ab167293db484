"""The contract of memory policies as reusable checks: `check_policy` for anyone's class."""

from testbed.contract.check import check_policy
from testbed.contract.clauses import ClauseBroken

__all__ = ["ClauseBroken", "check_policy"]
