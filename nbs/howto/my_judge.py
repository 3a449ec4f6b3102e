"""A judge and a reward of one's own."""

import math


def same_words(request):
    "Judge: the share of the truth's words that a candidate has; nan where there is no truth"
    truth = set(request.truth.split())
    return {
        id: len(truth & set(text.split())) / len(truth) if truth else math.nan
        for id, text in request.candidates.items()
    }


same_words.reads = ()  # it compares texts and reads no states from a reply


def short(trajectories):
    "Reward: 1 for at most six words, 0 for more"
    return [float(len(" ".join(t.fields.values()).split()) <= 6) for t in trajectories]
