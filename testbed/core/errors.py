"""The exceptions: errors in the user's input, and errors in a plug-in's code."""


class InputError(ValueError):
    """Bad input. Its text is `KEY=VALUE: PROBLEM (REMEDY)` in one line, without what is not given.

    Code decides by the class and these fields, never by the text. value: as it is shown. A problem
    without a key names its input itself.
    """

    def __init__(
        self, problem: str, *, key: str = "", value: str | None = None, remedy: str = ""
    ) -> None:
        super().__init__(problem)
        self.problem, self.key, self.value, self.remedy = problem, key, value, remedy

    def __str__(self) -> str:
        given = self.key if self.value is None else f"{self.key}={self.value}"
        text = f"{given}: {self.problem}" if given else self.problem
        return f"{text} ({self.remedy})" if self.remedy else text


class AnswerIsNo(InputError):
    """The input is right, and what it asks for does not hold: the command's exit code is 1."""


class DoesNotFit(AnswerIsNo):
    """The memory of a server does not hold what it must."""


class DoesNotStart(AnswerIsNo):
    """A server of the command or configuration would end at its start: vLLM refuses its limits or
    its memory.
    """


def check_least(least: int, **values: int) -> None:
    """Raise InputError for the first of these values, by name, that is below the least one."""
    for name, value in values.items():
        if value < least:
            raise InputError(f"{name}={value}: must be at least {least}")


class PlugInError(RuntimeError):
    """A policy, scheduler, preemption rule or cost model broke its contract; the message names it
    and its action.
    """


class OracleError(RuntimeError):
    """An oracle was built without the knowledge of the future that it needs."""


class UnsupportedError(TypeError):
    """The policy does not declare the trait that this call needs."""
