"""A second simulator of generated stories, slow and obvious, that shares no code with
`humanlm.social.world`.

It reads sentences by cutting them at fixed words, finds the room of a container by looking ahead
in the text, and keeps one table of everybody's beliefs: an entry for every chain of people and
every thing. Each observation is written at once into the entries of all who share it, so nothing
is worked out later from sets of witnesses. If both agree on ten thousand stories, an error would
have to be made twice in different ways.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise, product

from humanlm.social.generation import Tale


@lru_cache
def _chains(crowd: tuple[str, ...], depth: int) -> list[tuple[str, ...]]:
    "List who can think that who thinks …, among people who see each other"
    chains = (chain for n in range(1, depth + 1) for chain in product(crowd, repeat=n))
    return [chain for chain in chains if all(a != b for a, b in pairwise(chain))]


def _people(line: str) -> list[str]:
    "Everybody who acts or is spoken to in a line"
    names = [word.strip(",") for word in line.split() if word[0].isupper() and word != "The"]
    return (
        []
        if any(
            verb in line
            for verb in (" likes ", " dislikes ", " loves ", " hates ", " saw ", " lost ")
        )
        else names
    )


class Replay:
    "The slow simulator: replays a story into a table of everybody's beliefs"

    def __init__(self, sentences: Sequence[str], depth: int = 4):  # of the longest chain
        self.depth, self.rest = depth, [line.rstrip(".") for line in sentences]
        self.people = dict.fromkeys(name for line in self.rest for name in _people(line))
        self.room: dict[str, str] = {}  # person → room
        self.spot: dict[str, str] = {}  # thing → container
        self.begin: dict[str, str] = {}  # thing → first container
        self.stand: dict[str, str] = {}  # container → room
        self.came, self.gone = (
            [],
            [],
        )  # who took part in the last joint entrance, and who has left since, in order
        self.held: dict[tuple[tuple[str, ...], str], str] = {}  # (chain, thing) → container
        acts = {
            " publicly claimed that the ": self.claim,
            " privately told ": self.tell,
            " entered the ": self.come,
            " exited the ": self.leave,
            " moved the ": self.put,
            " is in the ": self.find,
        }
        while self.rest:
            line = self.rest.pop(0)
            if words := next((words for words in acts if words in line), ""):
                acts[words](*line.split(words, 1))

    def show(self, room: str, thing: str) -> None:
        "Everybody in a room sees where the thing is, and that the others see it"
        crowd = tuple(name for name, place in self.room.items() if place == room)
        self.held |= {(chain, thing): self.spot[thing] for chain in _chains(crowd, self.depth)}

    def come(self, who: str, room: str) -> None:
        names = who.replace(" and ", ", ").split(", ")
        self.room |= dict.fromkeys(names, room)
        if room != "waiting_room":
            self.entered = room
            if len(names) > 1:
                self.gone, self.came = [], names
            for thing in [thing for thing, box in self.spot.items() if self.stand[box] == room]:
                self.show(room, thing)

    def leave(self, who: str, room: str) -> None:
        self.room[who] = ""
        self.gone.append(who)

    def find(self, who: str, place: str) -> None:
        "Somebody is in a room, a container is in a room, or a thing is in a container"
        name, told = who.removeprefix("The "), f"The {place} is in the "
        if name == who:
            self.come(who, place)
        elif name not in self.stand:
            self.spot[name] = place
            self.begin.setdefault(name, place)
            self.stand[place] = next(
                (line.removeprefix(told) for line in self.rest if line.startswith(told)),
                self.entered,
            )
            self.show(self.stand[place], name)

    def put(self, who: str, what: str) -> None:
        thing, box = what.split(" to the ")
        self.spot[thing], self.stand[box] = box, self.room[who]
        self.show(self.room[who], thing)

    def claim(self, who: str, fact: str) -> None:
        self.say(who, [name for name in self.people if name != who], fact)

    def tell(self, who: str, words: str) -> None:
        listener, fact = words.split(" that the ")
        self.say(who, [listener], fact)

    def say(self, speaker: str, listeners: Iterable[str], fact: str) -> None:
        thing, place = fact.split(" is in the ")
        for you in listeners:
            self.held[(speaker, you), thing] = place
            if you not in self.came or (
                speaker in self.came and self.gone.index(you) < self.gone.index(speaker)
            ):
                self.held |= {((you,), thing): place, ((you, speaker), thing): place}


def slow_answer(tale: Tale) -> list[str | None]:
    "Answer all questions of a tale by replaying every observation into every thought"
    replay = Replay(tale.sentences)
    return [_recall(replay, asked.text.rstrip("?")) for asked in tale.questions]


def _recall(replay: Replay, question: str) -> str | None:
    words = (
        question.replace(" really", "")
        .replace(" is", "")
        .replace(" at the beginning", "")
        .split(" the ")
    )
    names = [word for word in words[0].split() if word[0].isupper() and word != "Where"]
    if not names:
        return (replay.begin if words[0] == "Where was" else replay.spot)[words[1]]
    return replay.held.get((tuple(names), words[1]))
