"""The parts of an answer: the words of a simulation, or the tokens that a model generates."""

from abc import ABC, abstractmethod
from typing import ClassVar

from testbed.serving.api_errors import ApiError
from testbed.serving.output_lengths import OutputLengths
from testbed.serving.protocol import Sampling
from testbed.serving.sequence_text import GeneratedText, SequenceText, Words
from testbed.serving.token_draws import Draws
from testbed.serving.tokenizer import Tokenizer

# Accepted, and named in a header: a simulation generates no text on which they could act.
WITHOUT_TEXT = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
    "early_stopping",
    "seed",
    "stop",
    "user",
)
# Parameters that the engine's sampler lacks, and the values that change nothing
NOT_SAMPLED = {
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "early_stopping": (False,),
}


class Answering(ABC):
    """The engine behind an answer: everything that is well formed is answered, as long as it may
    be. is_simulated: whether the answers have no meaning.
    """

    is_simulated: ClassVar[bool]

    def check(self, body: Sampling, prompts: list[tuple[int, ...]]) -> None:  # noqa: B027
        """Raise ApiError for what cannot be answered."""

    @abstractmethod
    def ignored(self, body: Sampling) -> list[str]:
        """The parameters that are given and have no meaning."""

    def drawn_from(self, body: Sampling) -> str | None:
        """The length model from which the answer's length is drawn; None for none."""
        return None

    def output_len(self, request_id: int, max_tokens: int, body: Sampling) -> int:
        """The output tokens at which the engine ends."""
        return max_tokens

    def draws(self, body: Sampling) -> Draws | None:
        """The sampling of tokens; None takes the most likely one."""
        return None

    def end_ids(self, body: Sampling) -> frozenset[int]:
        """The tokens that end a sequence."""
        return frozenset()

    @abstractmethod
    def text(self, output_len: int, max_tokens: int, body: Sampling) -> SequenceText:
        """The text of one sequence, which begins empty."""


class Simulated(Answering):
    """Answers of numbered words, as long as max_tokens or as a draw says."""

    is_simulated = True

    def __init__(self, lengths: OutputLengths) -> None:
        self._lengths = lengths

    def ignored(self, body: Sampling) -> list[str]:
        return [name for name in WITHOUT_TEXT if getattr(body, name) is not None]

    def drawn_from(self, body: Sampling) -> str | None:
        bounded, endless = not body.ends_by_itself, bool(body.ignore_eos)
        return self._lengths.drawn_from(is_bounded=bounded, ignore_eos=endless)

    def output_len(self, request_id: int, max_tokens: int, body: Sampling) -> int:
        if self.drawn_from(body) is None:
            return max_tokens
        return self._lengths.draw(request_id, max_tokens, body.min_tokens or 0)

    def text(self, output_len: int, max_tokens: int, body: Sampling) -> SequenceText:
        return Words(output_len, max_tokens)


class Generated(Answering):
    """Answers of a model's tokens. end_ids: its tokens that end a text; vocab_size: its ids are
    below it.
    """

    is_simulated = False

    def __init__(self, tokenizer: Tokenizer, end_ids: frozenset[int], vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._vocab_size = vocab_size

    def check(self, body: Sampling, prompts: list[tuple[int, ...]]) -> None:
        for name, neutral in NOT_SAMPLED.items():
            value = getattr(body, name)
            if value is not None and value not in neutral:
                raise ApiError(400, f"{name}={value}: is not supported (leave it out)", name)
        if body.num_seqs > body.num_choices and not body.use_beam_search:
            message = "best_of: samples are not ranked (give n, or use_beam_search)"
            raise ApiError(400, message, "best_of")
        if body.use_beam_search and self.end_ids(body):
            message = "use_beam_search: beams have a fixed length (give ignore_eos=true)"
            raise ApiError(400, message, "use_beam_search")
        if body.min_tokens and self.end_ids(body):
            message = "min_tokens: is not supported without ignore_eos=true"
            raise ApiError(400, message, "min_tokens")
        self._check_ids(prompts)

    def _check_ids(self, prompts: list[tuple[int, ...]]) -> None:
        """A splitter without a vocabulary has ids of any size, which the engine folds."""
        limit = self._vocab_size
        if self._tokenizer.num_ids is not None and any(max(ids) >= limit for ids in prompts if ids):
            raise ApiError(400, f"prompt: token ids must be below {limit}", "prompt")

    def ignored(self, body: Sampling) -> list[str]:
        return [] if body.user is None else ["user"]

    def draws(self, body: Sampling) -> Draws | None:
        """As OpenAI's, temperature and top_p are 1 unless given; temperature 0 takes the most
        likely token.
        """
        temperature = 1.0 if body.temperature is None else body.temperature
        if temperature == 0 or body.use_beam_search:
            return None
        return Draws(temperature, 1.0 if body.top_p is None else body.top_p, body.seed)

    def end_ids(self, body: Sampling) -> frozenset[int]:
        return frozenset() if body.ignore_eos else self._end_ids

    def text(self, output_len: int, max_tokens: int, body: Sampling) -> SequenceText:
        decoder = self._tokenizer.decoder()
        return GeneratedText(decoder, max_tokens, self.end_ids(body), body.stop_strings)
