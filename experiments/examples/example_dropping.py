"""A memory policy of sequences that shrink: every second block of a prompt is dropped."""

from testbed.memory.dropping.dropped_blocks import DroppedBlocks


class HalfOfThePrompt(DroppedBlocks):
    """Drops every second block of a prompt once the prompt is computed, and keeps the rest."""

    def num_dropped(self, prompt_len: int, num_tokens: int) -> int:
        """Blocks that a sequence of num_tokens tokens has dropped: never fewer of more tokens."""
        if num_tokens <= prompt_len:
            return 0
        return (prompt_len - 1) // self.block_size // 2  # not the block of the last token

    def next_drop(self, num_dropped: int) -> int:
        """The place of the next one, among the blocks that the sequence still has."""
        return num_dropped
