"""Words: where a text's words stand, which of them carry meaning, and how rare each is in a body of sentences."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import TypeVar

import Stemmer

from scopegate.settings import models_dir

T = TypeVar("T")

# Dotted abbreviations, numbers with their separators, single ideographs and kana, and everything else that is a word.
_WORD = re.compile(
    r"(?:[^\W\d_]\.){2,}"
    r"|\d+(?:[.,:]\d+)+"
    r"|[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
    r"|(?:(?![\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])[^\W_])+(?:['’][^\W\d_]+)*"
)
_POSSESSIVE = re.compile(r"['’]s?$")
_THOUSANDS = re.compile(r",(?=\d{3}(?!\d))")
# Snowball stems "countries" to "countri"; its own cache is off because it is not meant for several threads.
_SNOWBALL = Stemmer.Stemmer("english", 0)


def remembered(count: int, longest: int) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Keeps what was read from the last count texts, but not of texts beyond longest characters: memory is bounded."""

    def remembering(read: Callable[[str], T]) -> Callable[[str], T]:
        recent = lru_cache(maxsize=count)(read)

        @wraps(read)
        def recall(text: str) -> T:
            return recent(text) if len(text) <= longest else read(text)

        return recall

    return remembering


def word_set(text: str) -> frozenset[str]:
    """The words of a list written as running text."""
    return frozenset(text.split())


FUNCTION_WORDS = word_set("""
    a about above after again against all along also although am among an and another any anybody anyone anything are
    around as at be because been before being below between both but by can cannot could did do does doing done down
    during each either else etc ever every everyone everything few for from further get gets getting got had has have
    having he hence her here hers herself him himself his how however i if in into is it its itself just let many may me
    might mine more most much must my myself neither nor of off on once one ones onto or other others ought our ours
    ourselves out over own per quite rather really same shall she should since so some somebody someone something such
    tell than that the their theirs them themselves then there therefore these they this those though through thus till
    to too toward towards under unless until up upon us very via was we were what whatever when whenever where wherever
    whether which whichever while who whoever whom whose why will with within without would yes yet you your yours
    yourself yourselves please
    aren't can't couldn't didn't doesn't don't hadn't hasn't haven't isn't shouldn't wasn't weren't won't wouldn't
    i'd i'll i'm i've they'll they're they've we'll we're we've you'll you're you've
    """)

_IRREGULAR = {
    form: base
    for base, forms in {
        "bear": "born bore borne",
        "become": "became",
        "begin": "began begun",
        "break": "broke broken",
        "bring": "brought",
        "build": "built",
        "buy": "bought",
        "catch": "caught",
        "choose": "chose chosen choice",
        "come": "came",
        "die": "death died dead dying",
        "draw": "drew drawn",
        "drive": "drove driven",
        "fall": "fell fallen",
        "fight": "fought",
        "find": "finding",
        "found": "founded founder founders founding",
        "fly": "flew flown",
        "give": "gave given",
        "go": "went gone goes",
        "grow": "grew grown growth",
        "hold": "held",
        "keep": "kept",
        "know": "knew known",
        "lead": "led",
        "leave": "left",
        "lose": "lost loss",
        "make": "made",
        "man": "men",
        "woman": "women",
        "child": "children",
        "person": "people",
        "meet": "met",
        "pay": "paid",
        "rise": "rose risen",
        "run": "ran",
        "say": "said",
        "see": "saw seen",
        "sell": "sold sale sales",
        "send": "sent",
        "sing": "sang sung",
        "sit": "sat",
        "speak": "spoke spoken",
        "spend": "spent",
        "stand": "stood",
        "take": "took taken",
        "teach": "taught",
        "tell": "told",
        "think": "thought",
        "win": "won winner",
        "write": "wrote written",
        "2": "two",
        "3": "three",
        "4": "four",
        "5": "five",
        "6": "six",
        "7": "seven",
        "8": "eight",
        "9": "nine",
        "10": "ten",
        "11": "eleven",
        "12": "twelve",
    }.items()
    for form in forms.split()
}

NEVER_SEEN = 1e-5
_BACKGROUND_SENTENCES = 2_000


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text; start and end count code points, end exclusive.

    stem: what it is compared by: lower case, no accents, no inflection. informative: it is not a function word.
    """

    start: int
    end: int
    text: str
    stem: str
    informative: bool


@remembered(8192, longest=1_000)
def words(text: str) -> tuple[Word, ...]:
    """The words of a text, in order."""
    return tuple(
        Word(match.start(), match.end(), match[0], stem(match[0]), _informative(match[0]))
        for match in _WORD.finditer(text)
    )


@remembered(65536, longest=100)
def stem(word: str) -> str:
    """What a word is compared by, never empty; the same for its inflections, its accents and its case."""
    plain = word.casefold()
    if not plain.isascii():
        decomposed = unicodedata.normalize("NFKD", plain.replace("’", "'"))
        # U+FF9E is a letter, but what it decomposes to is nothing but a mark.
        plain = "".join(letter for letter in decomposed if not unicodedata.combining(letter)) or plain
    plain = _POSSESSIVE.sub("", plain)
    if plain[:1].isdigit():
        return _THOUSANDS.sub("", plain)
    plain = plain.replace(".", "")
    return _IRREGULAR.get(plain) or str(_SNOWBALL.stemWord(plain))


@remembered(65536, longest=100)
def _informative(word: str) -> bool:
    # "US" and "WHO" are names, "us" and "who" are not.
    if len(word) > 1 and word.isupper():
        return True
    plain = word.casefold().replace("’", "'")
    return plain not in FUNCTION_WORDS and _POSSESSIVE.sub("", plain) not in FUNCTION_WORDS


@lru_cache(maxsize=1)
def background() -> Mapping[str, float]:
    """The share of ordinary English sentences that hold a stem, for the stems that at least one in 10,000 holds."""
    table: dict[str, float] = json.loads((models_dir() / "feature-probe" / "background.json").read_text())
    return table


class WordCounts:
    """How many sentences of a body hold each word. Empty, it knows how rare words are in ordinary English."""

    def __init__(self) -> None:
        self._sentences = 0
        self._holding: Counter[str] = Counter()

    def add(self, text: str) -> None:
        """Count one more sentence."""
        self._sentences += 1
        self._holding.update(set(map(stem, _WORD.findall(text))))

    def remove(self, text: str) -> None:
        """Take back one sentence that add counted."""
        self._sentences -= 1
        for held in set(map(stem, _WORD.findall(text))):
            if self._holding[held] > 1:
                self._holding[held] -= 1
            else:
                del self._holding[held]

    def rarity(self, word: str) -> float:
        """How much it says that a sentence holds this stem: 0 where every sentence does, 1 where 1 in 100,000 does.

        It is -ln p, with p the share of sentences that hold the stem: the body's own, with ordinary English counting as
        2,000 more sentences, so that a scope of three facts still knows that "city" is common and "Uzhhorod" is not.
        """
        expected = _BACKGROUND_SENTENCES * max(background().get(word, 0.0), NEVER_SEEN)
        share = (self._holding[word] + expected) / (self._sentences + _BACKGROUND_SENTENCES)
        return min(1.0, math.log(share) / math.log(NEVER_SEEN))
