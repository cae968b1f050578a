"""How search scales with the catalogue: build, open, memory and time, beside another engine.

The documents of a large catalogue are made of a small one's: each takes its four quarters from
four documents and gets a model number of its own, so that words are as frequent as they are, and
the vocabulary grows with the catalogue.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agent_envs.webshop.search import SearchIndex
from agent_envs.webshop.search.index import FILE_NAME, TOP_K

SIZES = (1_000, 100_000, 1_180_000)
QUERIES = 300
PEER_LIMIT = 100_000
"""Documents up to which the other engine runs: it holds all terms of all documents in memory."""


def search_scale(
    texts: Sequence[str],
    sizes: Sequence[int] = SIZES,
    *,
    seed: int = 0,
    queries: int = QUERIES,
    peer_limit: int = PEER_LIMIT,
) -> dict[str, dict[str, Any]]:
    """Figures by size, as a string so that they go into JSON.

    Args:
        texts: documents of a real catalogue, to recombine (`document_text` of its products).
        sizes: how many documents to make.
        seed: of documents and queries.
        queries: how many to ask, each for the first time.
        peer_limit: documents up to which bm25s runs on the same queries, if it is installed.

    Returns:
        per size, from a process that built the index: ``build_s`` (analysis included), ``save_s``,
        ``bytes`` of the file, ``terms``, ``postings``, ``build_peak_mb``; from a fresh one that
        opened it: ``open_ms``, ``first_ms`` (the first query), ``p50_ms``, ``p99_ms`` and
        ``mean_ms`` of all, the same with ``cpu_`` without waiting for a processor, and with
        ``again_`` worked out anew once all words had been seen; and what was resident in MiB:
        ``start_mb`` (Python, numpy and this package), ``open_mb``, ``queries_mb`` (mapped pages
        included), ``queries_own_mb`` (without them), ``peak_mb``;
        ``bm25s``: see `compare_bm25s`, None where it did not run.
    """
    figures: dict[str, dict[str, Any]] = {}
    asked = make_queries(texts, queries, seed)
    for size in sizes:
        with TemporaryDirectory() as folder:
            place = Path(folder)
            built = _in_process(
                "build", {"folder": folder, "texts": list(texts), "size": size, "seed": seed}
            )
            opened = _in_process("ask", {"folder": folder, "queries": asked})
            peer = None
            if size <= peer_limit:
                documents = make_documents(texts, size, seed)
                peer = compare_bm25s(documents, asked, SearchIndex.open(place))
        figures[str(size)] = {**built, **opened, "bm25s": peer}
    return figures


def build(folder: str, texts: Sequence[str], size: int, seed: int) -> dict[str, Any]:
    """Build and save an index in this process, whose peak of memory is part of the figures."""
    ids = [
        hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).hexdigest()
        for number in range(size)
    ]
    start = time.perf_counter()
    index = SearchIndex.build(make_documents(texts, size, seed), ids)
    built = time.perf_counter()
    index.save(Path(folder))
    return {
        "build_s": built - start,
        "save_s": time.perf_counter() - built,
        "bytes": (Path(folder) / FILE_NAME).stat().st_size,
        "terms": index.terms,
        "postings": index.postings,
        "build_peak_mb": _resident()["peak"],
    }


def ask(folder: str, queries: Sequence[str]) -> dict[str, Any]:
    """Open an index in this process and ask every query once."""
    before = _resident()
    start = time.perf_counter()
    index = SearchIndex.open(Path(folder))
    opened = time.perf_counter() - start
    then = _resident()
    taken, worked = [], []
    for query in queries:
        start, begun = time.perf_counter(), time.thread_time()
        index.find(query)
        worked.append((time.thread_time() - begun) * 1e3)
        taken.append((time.perf_counter() - start) * 1e3)
    after = _resident()
    again = []
    for query in queries:
        start = time.perf_counter()
        index.find(query)
        again.append((time.perf_counter() - start) * 1e3)
    return {
        "open_ms": opened * 1e3,
        "first_ms": taken[0],
        **_spread(taken, ""),
        **_spread(worked, "cpu_"),
        **_spread(again, "again_"),
        "start_mb": before["all"],
        "open_mb": then["all"],
        "queries_mb": after["all"],
        "queries_own_mb": after["own"],
        "peak_mb": after["peak"],
    }


def _spread(taken: Sequence[float], prefix: str) -> dict[str, float]:
    return {
        f"{prefix}p50_ms": statistics.median(taken),
        f"{prefix}p99_ms": sorted(taken)[len(taken) * 99 // 100],
        f"{prefix}mean_ms": statistics.fmean(taken),
    }


def compare_bm25s(
    documents: Iterable[str], queries: Sequence[str], index: SearchIndex
) -> dict[str, Any] | None:
    """The same queries in bm25s (Lu 2024, arXiv:2407.03618), an engine of sparse matrices.

    It gets the words that its own tokenizer finds, its English stop words, and the variant that
    it calls Lucene's, with the same k1 and b. A stemmer it does not bring.

    Returns:
        ``p50_ms``, ``mean_ms``, ``build_s``, and ``overlap``: the mean share of our first 50
        results that are among its first 50. None if it is not installed.
    """
    try:
        bm25s = importlib.import_module("bm25s")  # not a dependency, nor known to type checkers
    except ImportError:
        return None
    start = time.perf_counter()
    engine = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    engine.index(
        bm25s.tokenize(list(documents), stopwords="en", show_progress=False), show_progress=False
    )
    built = time.perf_counter() - start
    taken, overlaps = [], []
    for query in queries:
        start = time.perf_counter()
        tokens = bm25s.tokenize(query, stopwords="en", show_progress=False)
        found, scores = engine.retrieve(tokens, k=min(TOP_K, len(index)), show_progress=False)
        taken.append((time.perf_counter() - start) * 1e3)
        theirs = {int(n) for n, score in zip(found[0], scores[0], strict=True) if score > 0}
        ours = index.find(query)
        if ours:
            overlaps.append(len(theirs.intersection(ours)) / len(ours))
    return {
        "build_s": built,
        "p50_ms": statistics.median(taken),
        "mean_ms": statistics.fmean(taken),
        "overlap": statistics.fmean(overlaps) if overlaps else None,
    }


def make_documents(texts: Sequence[str], size: int, seed: int) -> Iterator[str]:
    """`size` documents recombined from `texts`, each drawn by (seed, its number)."""
    quarters = [_quarters(text) for text in texts]
    for number in range(size):
        draw = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=20).digest()
        drawn = [int.from_bytes(draw[i : i + 4], "little") for i in range(0, 20, 4)]
        parts = [quarters[drawn[place] % len(quarters)][place] for place in range(4)]
        yield " ".join((*parts, f"kx{drawn[4] % 10**7:07}"))


def _quarters(text: str) -> list[str]:
    words = text.split(" ")
    cuts = [len(words) * place // 4 for place in range(5)]
    return [" ".join(words[start:stop]) for start, stop in pairwise(cuts)]


def make_queries(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """Two to five words from the first twelve, mostly the title, of a document."""
    rng = random.Random(f"queries {seed}")
    asked = []
    for _ in range(count):
        words = rng.choice(texts).split()[:12]
        asked.append(" ".join(rng.sample(words, min(len(words), rng.randint(2, 5)))))
    return asked


def _in_process(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What `build` or `ask` gives in a new process."""
    code = (
        "import json, sys\n"
        f"from trainer.bench.webshop_search import {name}\n"
        f"print(json.dumps({name}(**json.load(sys.stdin))))"
    )
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"The process that measures {name!r} failed:\n{result.stderr}")
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def _resident() -> dict[str, float | None]:
    """MiB resident in this process: now in all, now its own, and the most so far in all.

    None where the system has no ``/proc``.
    """
    names = {"VmRSS": "all", "RssAnon": "own", "VmHWM": "peak"}
    found: dict[str, float | None] = dict.fromkeys(names.values())
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in names:
                found[names[name]] = int(value.split()[0]) / 1024
    return found
