from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.config import (
    Config,
    ConfigError,
    SeroConfig,
    config_hash,
    from_dict,
    load_config,
    parse_overrides,
    resolve,
)

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def test_resolved_config_round_trips_through_yaml() -> None:
    config = load_config({"optim": {"lr": 3e-4}, "env": {"task_types": ["a", "b"]}})
    again = from_dict(yaml.safe_load(yaml.safe_dump(resolve(config))))
    assert again == config
    assert config_hash(again) == config_hash(config)
    assert config_hash(again) != config_hash(Config())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], r"mapping of sections, found \[\] of type list"),
        (7, r"mapping of sections, found 7 of type int"),
        ({"optim": {"lrr": 1}}, r"'optim\.lrr'.*'optim\.lr'"),
        ({"optimm": {}}, r"'optimm'.*'optim'"),
        ({"env": {"generated": {"sed": 1}}}, r"'env\.generated\.sed'.*'env\.generated\.seed'"),
        ({"run": {"seed": True}}, r"run\.seed=True must be of type int"),
        (
            {"objective": {"name": "gigpo", "anchors": {"similarity": 0.0}}},
            r"objective\.anchors\.similarity=0\.0 must lie in \(0, 1\]",
        ),
        (
            {"objective": {"name": "graphgpo", "graph": {"similarity": 0.0}}},
            r"objective\.graph\.similarity=0\.0 must lie in \(0, 1\]",
        ),
        ({"run": {"seed": 1.5}}, r"run\.seed=1\.5 must be of type int"),
        ({"auxiliary": {"serro": {}}}, r"'auxiliary\.serro'.*'auxiliary\.sero'"),
        ({"objective": {"kl_kind": "k1"}}, r"kl_kind=k1 with kl_placement=loss is refused"),
        ({"objective": {"dual_clip": 1.0}}, r"dual_clip=1\.0 must exceed 1"),
        ({"rollout": {"rollouts": 1}}, r"groups of one"),
        ({"rollout": {"temperature": 0}}, r"rollout\.temperature=0\.0 must be positive"),
        ({"rollout": {"temperature": 1e-300}}, r"temperature=1e-300 must be at least 0\.0001"),
        ({"optim": {"lr": "nan"}}, r"optim\.lr=nan"),
        ({"model": {"hidden_size": 130}}, r"130 is not a multiple of model\.heads=4"),
        ({"warmstart": {"random_share": 0.99}}, r"sum to less than 1"),
        ({"env": 3}, r"env must be a mapping"),
        ({"optim": {"beta1": 1.0}}, r"optim\.beta1=1\.0 must lie in \[0, 1\)"),
        ({"optim": {"beta2": "nan"}}, r"optim\.beta2=nan"),
        ({"optim": {"eps": -1}}, r"optim\.eps=-1\.0"),
        ({"optim": {"weight_decay": "inf"}}, r"optim\.weight_decay=inf"),
        ({"rollout": {"success_reward": "nan"}}, r"rollout\.success_reward=nan"),
        ({"rollout": {"format_penalty": -5}}, r"rollout\.format_penalty=-5\.0"),
        ({"objective": {"clip_low": 1}}, r"objective\.clip_low=1\.0 must be below 1"),
        ({"objective": {"dual_clip": "nan"}}, r"dual_clip=nan must exceed 1"),
        ({"auxiliary": {"sero": {"w_min": "nan"}}}, r"auxiliary\.sero\.w_min=nan"),
        ({"auxiliary": {"sero": {"oracle": "best"}}}, r"auxiliary\.sero\.oracle='best'"),
        ({"warmstart": {"random_share": -0.5, "inadmissible_share": 0.6}}, r"random_share=-0\.5"),
        ({"model": {"heads": 0}}, r"model\.heads=0 must be positive"),
        ({"model": {"layers": 0}}, r"model\.layers=0"),
        ({"model": {"hidden_size": 12}}, r"12 over model\.heads=4 is odd"),
        ({"env": {"generated": {"receptacles": 0}}}, r"env\.generated\.receptacles=0"),
        ({"prompt": {"template": "nope"}}, r"prompt\.template='nope' must be one of field"),
        ({"eval": {"splits": ["train", "train"]}}, r"names a split twice"),
    ],
)
def test_nonsense_is_refused_by_name(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(data)


@pytest.mark.parametrize("data", [[], 7, True, {1: 2}, {"run": []}, {"run": {None: 3}}])
def test_what_is_no_config_is_said(data: Any) -> None:
    for read in (load_config, from_dict):
        with pytest.raises(ConfigError, match=r"mapping|Unknown key"):
            read(data)


def test_zero_is_a_value_and_null_is_unset() -> None:
    config = load_config({"run": {"seed": 0}, "eval": {"tasks": None}, "objective": {"kl_coef": 0}})
    assert config.run.seed == 0
    assert config.eval.tasks is None
    assert config.objective.kl_coef == 0.0


def test_overrides_are_typed_like_their_fields() -> None:
    words = "--optim.lr 1e-4 --run.seed=3 --objective.dual-clip null --objective.use_std=false"
    overrides = parse_overrides([*words.split(), "--eval.splits=train,valid_seen"])
    config = load_config({"optim": {"lr": 1.0}}, overrides)
    assert config.optim.lr == 1e-4
    assert config.run.seed == 3
    assert config.objective.dual_clip is None
    assert config.eval.splits == ("train", "valid_seen")
    assert config.objective.use_std is False


@pytest.mark.parametrize("value", ["null", "None", None])
def test_no_list_is_not_a_list_with_that_name(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"eval\.splits=.* must be a list; .* is \[\]\."):
        load_config({}, {"eval.splits": value})
    assert load_config({}, {"eval.splits": "[]"}).eval.splits == ()


@pytest.mark.parametrize("arguments", [["optim.lr", "1"], ["--optim.lr"], ["--"]])
def test_malformed_overrides_are_refused(arguments: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse_overrides(arguments)


def test_missing_and_broken_files_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load_config(tmp_path / "absent.yaml")
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"broken\.yaml is not valid YAML"):
        load_config(tmp_path / "broken.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match=r"list\.yaml must hold a mapping"):
        load_config(tmp_path / "list.yaml")


def test_yaml_numbers_that_yaml_reads_as_text(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("optim: {lr: 1e-4}\n")
    assert load_config(tmp_path / "c.yaml").optim.lr == 1e-4


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_every_shipped_config_loads(path: Path) -> None:
    config = load_config(path)
    assert from_dict(resolve(config)) == config


@pytest.mark.parametrize("text", ["train,valid_seen", "[train, valid_seen]"])
def test_lists_on_the_command_line(text: str) -> None:
    config = Config().replace(**{"eval.splits": text})
    assert config.eval.splits == ("train", "valid_seen")


def test_o26_rounded_samplers_need_recomputed_logprobs() -> None:
    with pytest.raises(ConfigError, match=r"optim\.old_logprobs=recompute"):
        Config().replace(**{"run.dtype": "bfloat16"})
    config = Config().replace(**{"run.dtype": "bfloat16", "optim.old_logprobs": "recompute"})
    assert config.run.dtype == "bfloat16"


def _given(*words: str) -> Config:
    return load_config({"auxiliary": {"sero": {"weight": 0.5}}}, parse_overrides(words))


def test_a_section_is_switched_on_by_braces_and_off_by_null() -> None:
    config = _given("--auxiliary.sft", "{}", "--auxiliary.sero", "null")
    assert [name for name, _ in config.auxiliary.active()] == ["sft"]
    assert config.auxiliary.sft == type(config.auxiliary.sft)()

    config = _given("--auxiliary.sft={weight: 1e-2}", "--auxiliary.sft.oracle_budget_s", "3")
    assert config.auxiliary.sft is not None
    assert (config.auxiliary.sft.weight, config.auxiliary.sft.oracle_budget_s) == (0.01, 3.0)

    # Braces put a whole section in the place of the file's, with the published settings of a base.
    assert _given("--auxiliary.sero", "{}").auxiliary.sero == SeroConfig()
    assert _given("--objective", "{name: dapo}").objective.clip_high == 0.28
    # A text that is no section stays a text.
    assert _given("--env.data", "{}").env.data == "{}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--auxiliary.seed"], r"--auxiliary\.seed\.weight VALUE sets a field.*'\{\}'"),
        (["--auxiliary.seed", "--run.seed", "1"], r"--auxiliary\.seed needs a value.*'\{\}'"),
        (["--optim"], r"--optim needs a value: --optim\.\w+ VALUE"),
        (["--optim.lr"], r"--optim\.lr needs a value: --optim\.lr VALUE\."),
        (["--auxiliary.seed", "{weight"], r"auxiliary\.seed='\{weight' is not valid YAML"),
        (["--auxiliary.seed", "0.1"], r"seed must be a mapping, found '0\.1'.*seed\.weight VALUE"),
        (["--objective", "gigpo"], r"found 'gigpo'\. .*--objective\.name gigpo"),
        (["--auxiliary", "seed"], r"found 'seed'\. .*--auxiliary\.seed '\{\}'"),
        (["--objective", "spo3"], r"'spo3' cannot be trained.*docs/objectives/spo3\.md"),
        (["--objective.name", "gepo"], r"'gepo' cannot be trained.*objectives/gepo\.md.*grpo"),
        (["--objective.name", "seed"], r"'seed' is an auxiliary objective: --auxiliary\.seed"),
        (["--objective.name", "gipgo"], r"^objective\.name='gipgo' must be one of none, grpo"),
        (["--auxiliary.gigpo.weight", "1"], r"'auxiliary\.gigpo'.*--objective\.name gigpo"),
        (["--objective.luffy.weight", "1"], r"'objective\.luffy'.*--auxiliary\.luffy"),
        (["--sero.weight", "1"], r"'sero'\. 'sero' is an auxiliary objective"),
    ],
)
def test_who_names_an_objective_wrongly_is_told_how(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _given(*words)


def test_an_unknown_key_like_no_other_gets_the_list_and_no_guess() -> None:
    with pytest.raises(ConfigError, match=r"'run\.qqq'\. Known: .*seed.*iterations") as caught:
        from_dict({"run": {"qqq": 1}})
    assert "Did you mean" not in str(caught.value)


def test_a_folder_in_the_place_of_a_config_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a folder\. Name a config file"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"# f\xfcr heute\nrun: {seed: 1}\n", r"c\.yaml is no text in UTF-8"),
        ("run: {seed: 1}\n".encode("utf-16"), r"c\.yaml is no text in UTF-8"),
        (b"run: {seed: 1}\nenv: {}\nrun: {threads: 2}\n", "'run' stands in line 1 .* line 3"),
        (b"optim:\n  lr: 1\n  lr: 2\n", r"'optim\.lr' stands in line 2 and again in line 3"),
        (b"log: {run_name: 2024-02-30}\n", r"c\.yaml is not valid YAML: day is out of range"),
        (b"auxiliary:\n  sero:\n", r"auxiliary\.sero is empty.*`sero: \{\}`.*`sero: null`"),
        (b"run: &a {seed: 1, x: *a}\n", "holds itself"),
    ],
)
def test_files_that_yaml_reads_otherwise_than_they_look(
    tmp_path: Path, text: bytes, told: str
) -> None:
    (tmp_path / "c.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=told):
        load_config(tmp_path / "c.yaml")


def test_anchors_merges_bom_and_crlf_are_no_trouble(tmp_path: Path) -> None:
    text = (
        "\ufeffrun: &r {seed: 3}\r\nauxiliary:\r\n  sft: &w {weight: 0.5}\r\n"
        "  sero: {<<: *w, weight: 0.25}\r\n  format_only: *w\r\n  chord: null\r\n"
    )
    (tmp_path / "c.yaml").write_bytes(text.encode())
    config = load_config(tmp_path / "c.yaml")
    assert config.run.seed == 3
    active = {name: section.weight for name, section in config.auxiliary.active()}
    assert active == {"sft": 0.5, "sero": 0.25, "format_only": 0.5}
