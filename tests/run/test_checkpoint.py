"""A checkpoint is whole or not there; whatever is damaged is named, and the one before is used."""

import builtins
import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from recollect.run import checkpoint as checkpoints
from recollect.run.checkpoint import DamagedCheckpoint, fingerprint, load, load_newest, load_weights, save


def tensors(update: int) -> dict[str, Tensor]:
    """Every kind of tensor that a run stores: tied, transposed, scalar, empty and boolean ones among them."""
    rows = torch.arange(6.0).reshape(2, 3) + update
    return {
        "agent/weight": rows,
        "agent/tied": rows,
        "agent/transposed": rows.T,
        "collector/step": torch.tensor(update),
        "collector/actions": torch.empty(0, 2),
        "collector/reset": torch.tensor([True, False]),
        "collector/frame": torch.arange(5, dtype=torch.uint8),
    }


DATA = {
    "env_steps": 128,
    "recent_returns": [1 / 3, float("inf"), -0.0],
    "optimizer": [{"lr": 1e-3, "betas": [0.9, 0.999]}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of updates 1, 2 and 3."""
    for update in (1, 2, 3):
        save(tmp_path, update, tensors(update), DATA)
    return tmp_path


def newest(folder: Path, kind: str) -> Path:
    return folder / f"update_000000003.{kind}"


def test_everything_comes_back_as_it_was(folder: Path):
    checkpoint, damaged = load_newest(folder)
    assert damaged == []
    assert checkpoint.path == newest(folder, "json")
    assert checkpoint.data["update"] == 3
    assert {k: checkpoint.data[k] for k in DATA} == DATA
    expected = tensors(3)
    assert checkpoint.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert checkpoint.tensors[name].dtype is tensor.dtype, name
        assert torch.equal(checkpoint.tensors[name], tensor), name
    assert checkpoint.under("agent").keys() == {"weight", "tied", "transposed"}


def test_only_the_newest_are_kept(folder: Path):
    save(folder, 4, tensors(4), DATA, keep=2)
    kept = [
        "update_000000003.json",
        "update_000000003.safetensors",
        "update_000000004.json",
        "update_000000004.safetensors",
    ]
    assert sorted(path.name for path in folder.iterdir()) == kept


def test_damaged_ones_in_front_do_not_crowd_out_good_ones(folder: Path):
    """Going on from 1 since 2 and 3 are damaged: they are not among the newest that are kept."""
    for number in (2, 3):
        (folder / f"update_00000000{number}.safetensors").write_bytes(b"")
    save(folder, 2, tensors(2), DATA, keep=2)
    checkpoint, damaged = load_newest(folder)
    assert (checkpoint.data["update"], damaged) == (2, [])
    assert len(list(folder.glob("*.json"))) == 2


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(at: float) -> Callable[[Path], None]:
    """Change one bit of the byte that stands at this share of the file."""

    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(at * (len(content) - 1))] ^= 1
        path.write_bytes(content)

    return change


def edit_number(path: Path) -> None:
    """A plausible edit by hand: valid JSON, another number."""
    text = path.read_text()
    assert text.count('"env_steps": 128') == 1
    path.write_text(text.replace('"env_steps": 128', '"env_steps": 129'))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_json(path: Path) -> None:
    path.write_text("[1, 2]")


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"agent/weight": 1}))


DAMAGES = [
    ("safetensors", truncate),
    ("safetensors", empty),
    ("safetensors", pickled),
    *(("safetensors", flip(at)) for at in (0.0, 0.1, 0.5, 1.0)),
    ("safetensors", Path.unlink),
    ("json", truncate),
    ("json", empty),
    ("json", other_json),
    ("json", pickled),
    ("json", edit_number),
    *(("json", flip(at)) for at in (0.0, 0.3, 0.6, 1.0)),
]


@pytest.mark.parametrize(("kind", "damage"), DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_is_used(folder: Path, kind: str, damage: Callable[[Path], None]):
    damage(newest(folder, kind))
    checkpoint, damaged = load_newest(folder)
    assert checkpoint.data["update"] == 2
    assert torch.equal(checkpoint.tensors["agent/weight"], tensors(2)["agent/weight"])
    assert len(damaged) == 1
    assert str(newest(folder, kind)) in damaged[0]
    with pytest.raises(DamagedCheckpoint, match=str(newest(folder, kind))):
        load(newest(folder, "json"))


def test_every_byte_of_the_json_counts(folder: Path):
    """No single byte can change what is read: it is found out, or (white space) it said nothing."""
    path = newest(folder, "json")
    content, expected = path.read_bytes(), load(path).data
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1
        path.write_bytes(changed)
        try:
            assert load(path).data == expected, at
        except DamagedCheckpoint:
            continue


def test_two_damaged_ones_are_both_named(folder: Path):
    truncate(newest(folder, "safetensors"))
    empty(folder / "update_000000002.json")
    checkpoint, damaged = load_newest(folder)
    assert checkpoint.data["update"] == 1
    assert ["update_000000003" in damaged[0], "update_000000002" in damaged[1]] == [True, True]


def test_with_none_left_every_reason_is_given(folder: Path):
    for path in folder.glob("*.safetensors"):
        truncate(path)
    with pytest.raises(ValueError, match=r"no usable checkpoint.*000003.*000002.*000001"):
        load_newest(folder)
    with pytest.raises(ValueError, match="it has none"):
        load_newest(folder / "nowhere")


def test_a_leftover_of_a_killed_write_is_passed_over_and_swept(folder: Path):
    leftovers = [folder / "update_000000004.safetensors.partial", folder / "update_000000004.json.partial"]
    for path in leftovers:
        path.write_bytes(b"half a file")
    orphan = folder / "update_000000005.safetensors"
    orphan.write_bytes(b"tensors without their JSON")
    checkpoint, damaged = load_newest(folder)
    assert (checkpoint.data["update"], damaged) == (3, [])
    save(folder, 4, tensors(4), DATA)
    assert not any(path.exists() for path in [*leftovers, orphan])


def test_another_schema_version_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoints, "SCHEMA_VERSION", 2)
    with pytest.raises(DamagedCheckpoint, match="schema version 1, this code reads 2"):
        load(newest(folder, "json"))


class Crash(BaseException):
    """Stands for the end of the process: nothing after it runs, and nobody handles it."""


class CrashAt:
    """Ends the world at the k-th call that changes the disk: open, write, fsync, rename or delete.

    A write that is struck leaves half its bytes, the others strike before they did anything.
    """

    def __init__(self, patch: pytest.MonkeyPatch, k: int):
        self.left = k
        self.seen: list[str] = []
        crash = self

        class File(io.FileIO):
            def write(self, content, /) -> int:
                half = bytes(content)[: len(content) // 2]
                crash.count("write", lambda: io.FileIO.write(self, half))
                return io.FileIO.write(self, content)

        real_open = builtins.open

        def opened(file, mode="r", *args, **settings):
            if "w" not in mode:
                return real_open(file, mode, *args, **settings)
            crash.count("open")
            return File(file, "w")

        patch.setattr(builtins, "open", opened)
        for module, name in ((os, "fsync"), (os, "replace"), (Path, "unlink")):
            patch.setattr(module, name, self.guarded(name, getattr(module, name)))

    def guarded(self, name: str, real: Callable) -> Callable:
        def call(*args, **settings):
            self.count(name)
            return real(*args, **settings)

        return call

    def count(self, name: str, last_act: Callable[[], object] = lambda: None) -> None:
        self.seen.append(name)
        self.left -= 1
        if self.left == 0:
            last_act()
            raise Crash


def prepared(folder: Path) -> Path:
    """Three checkpoints, and what an earlier crash left behind."""
    for update in (1, 2, 3):
        save(folder, update, tensors(update), DATA)
    (folder / "update_000000009.json.partial").write_bytes(b"half a file")
    return folder


def calls_of_a_save(folder: Path) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        watched = CrashAt(patch, -1)
        save(folder, 4, tensors(4), DATA)
    return watched.seen


def test_a_crash_at_any_call_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path):
    calls = calls_of_a_save(prepared(tmp_path / "watched"))
    for k, call in enumerate(calls):
        folder = prepared(tmp_path / str(k))
        with pytest.MonkeyPatch.context() as patch:
            CrashAt(patch, k + 1)
            with pytest.raises(Crash):
                save(folder, 4, tensors(4), DATA)
        checkpoint, damaged = load_newest(folder)
        assert damaged == [], f"a crash at call {k} ({call}) left a damaged checkpoint"
        update = 4 if calls[:k].count("replace") == 2 else 3
        assert checkpoint.data["update"] == update, f"call {k} ({call})"
        assert torch.equal(checkpoint.tensors["agent/weight"], tensors(update)["agent/weight"])
        save(folder, update + 1, tensors(update + 1), DATA)  # and life goes on
        assert load_newest(folder)[0].data["update"] == update + 1
        assert not list(folder.glob("*.partial"))


def test_the_tensors_are_on_the_disk_before_the_json_names_them(tmp_path: Path):
    """Each file is written, synced, renamed, and its folder synced; only then is anything deleted."""
    calls = calls_of_a_save(prepared(tmp_path))
    assert calls == ["open", "write", "fsync", "replace", "fsync"] * 2 + ["unlink"] * 3


def network(width: int = 4, extra: bool = False) -> nn.Module:
    parts = {"first": nn.Linear(3, width), **({"second": nn.Linear(width, 1)} if extra else {})}
    return nn.ModuleDict(parts)


@pytest.mark.parametrize(
    ("stored", "own", "complaint"),
    [
        (network(), network(extra=True), "it lacks 'second.bias'"),
        (network(extra=True), network(), "it has an unknown 'second.bias'"),
        (network(5), network(4), r"'first.weight' is \[5, 3\], this network has \[4, 3\]"),
    ],
)
def test_another_networks_checkpoint_is_named(stored: nn.Module, own: nn.Module, complaint: str):
    before = fingerprint(own.state_dict())
    with pytest.raises(ValueError, match=f"some/where belongs to another network: .*{complaint}"):
        load_weights(own, stored.state_dict(), Path("some/where"))
    assert fingerprint(own.state_dict()) == before


def test_the_optimiser_comes_back_to_the_bit():
    """Two steps, stored, one more: the same as three in a row, moments, counts and a learning rate in a tensor."""

    def start() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = network()
        return model, torch.optim.Adam(model.parameters(), torch.tensor(0.1), eps=1e-5, fused=True)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, times: int) -> None:
        for _ in range(times):
            optimizer.zero_grad()
            model["first"](torch.ones(2, 3)).pow(2).sum().backward()
            optimizer.step()

    model, optimizer = start()
    step(model, optimizer, 2)
    stored, groups = checkpoints.optimizer_tensors(optimizer)
    groups = json.loads(json.dumps(groups))
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    stored = {k: v.clone() for k, v in stored.items()}
    step(model, optimizer, 1)

    resumed, other = start()
    rate = other.param_groups[0]["lr"]
    load_weights(resumed, weights, Path("here"))
    checkpoints.load_optimizer(other, stored, groups)
    assert other.param_groups[0]["lr"] is rate, "whoever fills this tensor to schedule it must still reach Adam"
    step(resumed, other, 1)
    assert fingerprint(resumed.state_dict()) == fingerprint(model.state_dict())


def test_the_fingerprint_sees_names_shapes_dtypes_and_bits():
    base = {"a": torch.zeros(2, 3), "b": torch.ones(4)}
    bit = torch.zeros(2, 3)
    bit.view(torch.int32)[0, 0] = 1  # the smallest float there is
    others = [
        {"a": bit, "b": base["b"]},
        {"a": torch.zeros(3, 2), "b": base["b"]},
        {"a": torch.zeros(2, 3, dtype=torch.int32), "b": base["b"]},
        {"a2": base["a"], "b": base["b"]},
        {"a": -base["a"], "b": base["b"]},
        {"b": base["b"]},
        {**base, "d": torch.zeros(0)},
    ]
    prints = {fingerprint(t) for t in [base, *others]}
    assert len(prints) == 1 + len(others)
    assert fingerprint(dict(reversed(base.items()))) == fingerprint(base), "the order of names is no difference"
    transposed = torch.arange(6.0).reshape(2, 3).T
    assert fingerprint({"a": transposed}) == fingerprint({"a": transposed.contiguous()}), "nor is the memory's layout"
    assert fingerprint({"a": torch.ones(2, dtype=torch.bfloat16)}) != fingerprint({"a": torch.ones(2)})
