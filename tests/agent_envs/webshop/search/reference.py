"""BM25 in plain loops and float64, written from its formula alone."""

from __future__ import annotations

import math

from agent_envs.webshop.search import analyze


def kept_length(length: int) -> int:
    """What one byte keeps of a length: all below 40, then four leading bits of what exceeds 24."""
    if length < 40:
        return length
    rest, cut = length - 24, 0
    while rest >= 16:
        rest //= 2
        cut += 1
    return 24 + rest * 2**cut


def reference_scores(texts: list[str], query: str) -> list[float]:
    """The score of every document, 0 where nothing matches."""
    documents = [analyze(text) for text in texts]
    filled = [document for document in documents if document]
    if not filled:
        return [0.0] * len(texts)
    mean = sum(len(document) for document in filled) / len(filled)
    scores = []
    for document in documents:
        score = 0.0
        for term in analyze(query):
            frequency = document.count(term)
            if frequency:
                having = sum(term in other for other in filled)
                idf = math.log(1 + (len(filled) - having + 0.5) / (having + 0.5))
                norm = 0.9 * (1 - 0.4 + 0.4 * kept_length(len(document)) / mean)
                score += idf * frequency / (frequency + norm)
        scores.append(score)
    return scores


def agrees(
    found: tuple[int, ...], texts: list[str], ids: list[str], query: str, k: int, margin: float
) -> bool:
    """Whether `found` are the best `k`, in order but for scores that differ by `margin`."""
    scores = reference_scores(texts, query)
    matching = [number for number, score in enumerate(scores) if score > 0]
    best = sorted(matching, key=lambda number: (-scores[number], ids[number]))[:k]
    return len(set(found)) == len(found) == len(best) and all(
        abs(scores[ours] - scores[theirs]) <= margin * scores[theirs]
        for ours, theirs in zip(found, best, strict=True)
    )
