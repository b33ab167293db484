"""The bodies of requests: OpenAI's fields, and those of the paper's section 5."""

from typing import Annotated, Any, Literal

from annotated_types import Ge
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from testbed.serving.api_errors import ApiError

# Parameters that would change the answer and that no server of ours has: refused by name.
NOT_SERVED = (
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "suffix",
    "logit_bias",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "response_format",
    "guided_json",
    "guided_regex",
    "structured_outputs",
)
OF_TOKENS = ("logprobs", "prompt_logprobs")  # 0 asks for those of the tokens themselves
TEXT_FORMAT = {"type": "text"}
Tokens = Annotated[int, Ge(1)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Prompt = str | list[str] | list[TokenId] | list[list[TokenId]]


class Body(BaseModel):
    """A body whose unknown fields are errors, and whose numbers are finite and no strings."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Body):
    """include_usage: the last event has the usage; continuous_usage_stats: every event has it, as
    vLLM's.
    """

    include_usage: bool = False
    continuous_usage_stats: bool | None = None


class Sampling(Body):
    """The parameters of both endpoints."""

    model: str
    n: Tokens | None = None
    best_of: Tokens | None = None
    use_beam_search: bool | None = None
    max_tokens: Tokens | None = None
    min_tokens: Annotated[int, Ge(0)] | None = None
    ignore_eos: bool | None = None
    priority: int | None = Field(default=None, ge=-(1 << 31), lt=1 << 31)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0)
    length_penalty: float | None = None
    early_stopping: bool | None = None
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    user: str | None = None
    logprobs: Any = None
    top_logprobs: Any = None
    prompt_logprobs: Any = None
    echo: Any = None
    suffix: Any = None
    logit_bias: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    structured_outputs: Any = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, one or several."""
        if isinstance(self.stop, str):
            return (self.stop,)
        return tuple(self.stop or ())

    @property
    def ends_by_itself(self) -> bool:
        """True if the answer may be as long as the model's context: nothing bounds it."""
        return False

    @property
    def num_choices(self) -> int:
        """The sequences of a prompt that are returned."""
        return self.n or 1

    @property
    def num_seqs(self) -> int:
        """The sequences of a prompt that are generated; with beam search, its width."""
        return self.best_of or self.num_choices

    def check(self) -> None:
        """Refuse what contradicts itself, and what is not served."""
        for name in NOT_SERVED:
            value = getattr(self, name)
            is_asked = bool(value) or (name in OF_TOKENS and type(value) is int)
            if is_asked and value != TEXT_FORMAT and value != "none":
                raise ApiError(400, f"{name}: is not supported (leave it out)", name)
        if self.num_seqs < self.num_choices:
            message = f"best_of={self.best_of}: must be at least n={self.n}"
            raise ApiError(400, message, "best_of")
        if self.use_beam_search and self.num_seqs == 1:
            message = "use_beam_search: a beam of one sequence is no search (give best_of or n)"
            raise ApiError(400, message, "use_beam_search")
        if self.stream and (self.use_beam_search or self.num_seqs > self.num_choices):
            message = "stream: the returned sequences are known at the end (best_of, beam search)"
            raise ApiError(400, message, "stream")
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options: needs stream=true", "stream_options")


class CompletionBody(Sampling):
    """The body of /v1/completions."""

    prompt: Prompt

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt as text or token ids."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        token_ids = [token for token in prompt if isinstance(token, int)]
        if token_ids:
            return [token_ids]
        return [part for part in prompt if not isinstance(part, int)]

    @property
    def num_prompts(self) -> int:
        """Prompts of the request."""
        return len(self.prompts)


class TextPart(Body):
    type: Literal["text"]
    text: str


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]
    name: str | None = None

    @property
    def text(self) -> str:
        """The content as text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatBody(Sampling):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None

    @property
    def ends_by_itself(self) -> bool:
        return self.max_tokens is None and self.max_completion_tokens is None

    @property
    def plain_messages(self) -> list[dict[str, str]]:
        """The messages as a chat template reads them."""
        plain = [{"role": message.role, "content": message.text} for message in self.messages]
        for message, plain_message in zip(self.messages, plain, strict=True):
            if message.name is not None:
                plain_message["name"] = message.name
        return plain

    @property
    def num_prompts(self) -> int:
        """A conversation is one prompt."""
        return 1


def parsed(kind: type[Sampling], body: bytes) -> Sampling:
    """The body, checked; raises ApiError for the first thing that is wrong."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = str(first["loc"][0])[:80] if first["loc"] else None  # a name of the client's
        named = param or "the body"
        raise ApiError(400, f"{named}: {first['msg'][:200]}", param) from None
    request.check()
    return request
