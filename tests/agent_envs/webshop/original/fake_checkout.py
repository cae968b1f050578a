"""Writes a tiny shop that is laid out, imports and answers as a checkout of the original does.

It has one product page and counts; nothing of it is the original's.
"""

from __future__ import annotations

import json
from pathlib import Path

from agent_envs.webshop.catalogue import RawFiles

PRODUCTS = [
    {
        "asin": "B01",
        "name": "Red Shoe",
        "full_description": "a shoe",
        "small_description": ["it is red", "it fits"],
    },
    {"asin": "B02", "name": "Blue Shoe", "full_description": "", "small_description": "blue"},
    {"asin": "B01", "name": "Green Hat", "full_description": "", "small_description": None},
    {"asin": "B03", "name": "Hat", "full_description": "a red red hat", "small_description": []},
]

_FILES = {
    "utils.py": "DEFAULT_ATTR_PATH = HUMAN_ATTR_PATH = 'nowhere'\n",
    "engine/goal.py": """
import spacy
from rich import print

nlp = spacy.load("en_core_web_sm")

def nouns(title):
    return [t.text for t in nlp(title) if t.pos_ == "NOUN"]
""",
    "engine/engine.py": """
import json, random
import cleantext
from rank_bm25 import BM25Okapi
from pyserini.search.lucene import LuceneSearcher
from web_agent_site.utils import DEFAULT_ATTR_PATH, HUMAN_ATTR_PATH

def load(path):
    print("loaded")
    for name in (DEFAULT_ATTR_PATH, HUMAN_ATTR_PATH):
        with open(name) as f:
            json.load(f)
    with open(path) as f:
        products = json.load(f)
    return products, {p["asin"]: random.random() for p in products}

def find(searcher, query):
    return [json.loads(searcher.doc(h.docid).raw())["id"] for h in searcher.search(query, k=2)]
""",
    "envs/__init__.py": "raise RuntimeError('this would need a browser')\n",
    "envs/web_agent_text_env.py": """
import os
import gym, torch
from web_agent_site.engine.engine import LuceneSearcher, find, load
from web_agent_site.engine.goal import nouns

class Server: pass

class WebAgentTextEnv(gym.Env):
    def __init__(self, observation_mode="html", file_path=None, **kwargs):
        self.mode, self.kwargs = observation_mode, kwargs
        self.server = Server()
        self.server.products, self.server.product_prices = load(file_path)
        self.server.searcher = LuceneSearcher("index")
        self.server.goals = [{"name": p["name"]} for p in self.server.products]
        self.server.user_sessions = {"old": {}}

    def reset(self, session=None):
        self.session = session
        self.visit = self.server.user_sessions[session]
        self.found = ["start"]
        return f"{self.mode} {self.visit['goal']['name']} {self.kwargs}", None

    def step(self, action):
        name, _, argument = action[:-1].partition("[")
        if name == "search":
            self.found = find(self.server.searcher, argument)
            return " ".join(self.found), 0.0, False, None
        if argument == "buy now":
            self.visit["verbose_info"] = {"nouns": nouns(self.visit["goal"]["name"])}
            return "bought", self.server.product_prices["B01"], True, None
        if argument == "leave":
            os._exit(3)
        if argument == "sessions":
            return " ".join(self.server.user_sessions), 0.0, False, None
        raise KeyError(argument)

    def get_available_actions(self):
        return dict(has_search_bar=self.found == ["start"], clickables=self.found)
""",
}


def write(folder: Path) -> Path:
    """Write the checkout into `folder`, which is returned."""
    for name, text in _FILES.items():
        path = folder / "web_agent_site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def write_data(folder: Path) -> RawFiles:
    """Write its catalogue into `folder`."""
    folder.mkdir()
    files = RawFiles(folder / "items_shuffle.json", folder / "items_ins_v2.json")
    files.products.write_text(json.dumps(PRODUCTS), encoding="utf-8")
    files.attributes.write_text("{}", encoding="utf-8")
    return files
