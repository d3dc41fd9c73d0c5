"""Errors that are shown to the user as one sentence, without a stack trace."""

LONGEST = 1600
"""Maximum length of a message in characters; the middle of a longer one is left out."""


class UserError(Exception):
    """An error that the user can correct (exit code 2).

    The message is one sentence that names the option to change: ``option=value: what is wrong; what to set instead``.
    """

    def __str__(self) -> str:
        # Quoted text may have many lines.
        sentence = " ".join(super().__str__().splitlines())
        if len(sentence) <= LONGEST:
            return sentence
        return f"{sentence[: LONGEST // 2]} … {sentence[-LONGEST // 2 :]}"


class Unwritable(UserError):
    """A results or cache folder that is full or read-only.

    The request itself is valid: a cell that fails with it is recorded as ``interrupted``, and the same command resumes
    it once the folder can be written.
    """
