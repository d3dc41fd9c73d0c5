"""The one kind of error that is shown to a user as a sentence."""

LONGEST = 1600  # characters of a sentence


class UserError(Exception):
    """A mistake of the user's, told in one sentence that names the option to change (exit code 2)."""

    def __str__(self) -> str:
        # What it quotes may have several lines, or pages.
        sentence = " ".join(super().__str__().splitlines())
        if len(sentence) <= LONGEST:
            return sentence
        return f"{sentence[: LONGEST // 2]} … {sentence[-LONGEST // 2 :]}"


class Unwritable(UserError):
    """A folder that takes no more, full or read-only: nothing is wrong with what was asked, and it can go on later."""
