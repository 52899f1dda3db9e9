"""One reply of the LLM, read as it is written."""

from __future__ import annotations

from scopegate.answering.citations import cited
from scopegate.answering.shapes import Shape, Unreadable, Written
from scopegate.llm.client import Piece


class Reply:
    """text: all of it so far. written: what that says. shown: its answer as it may be shown.

    citations: the passages, 1 to `passages`, that shown cites; see cited. cut: whether it ended at a limit.
    """

    def __init__(self, shape: Shape, passages: int) -> None:
        self._shape = shape
        self._passages = passages
        self.text = ""
        self.written = Written()
        self.shown = ""
        self.citations: tuple[int, ...] = ()
        self.cut = False

    @property
    def declines(self) -> bool:
        """Whether it has said that it cannot answer."""
        return self.written.can_answer is False

    def take(self, piece: Piece) -> None:
        """Reads on. Raises Unreadable."""
        self.cut = self.cut or piece.cut
        if piece.text:
            self.text += piece.text
            self._read(complete=False)

    def finish(self) -> None:
        """Reads it as complete. Raises Unreadable, also where there is no answer to show."""
        self._read(complete=True)
        if self.written.can_answer and not self.shown:
            raise Unreadable("its answer says nothing")

    def _read(self, *, complete: bool) -> None:
        self.written = self._shape.read(self.text, self._passages, complete=complete)
        self.shown, self.citations = cited(self.written.answer, self._passages, complete=complete)
