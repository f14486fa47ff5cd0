"""Generation cuts, recorded and judged: a run of ours is clean, and a wrong recording is not (section 11)."""

from __future__ import annotations

import base64
import json
from collections import Counter
from importlib.resources import files
from itertools import count

import jsonschema
import numpy as np
import pytest
import torch
from attrs import evolve
from click.testing import CliRunner
from hypothesis import Phase

from rollproof.impl.cuts import CutStore, Generation
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.retained import CallMedia
from rollproof.properties.adapters import our_cuts
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.audit import reading_cuts
from rollproof.properties.audit.judge import judge
from rollproof.properties.audit.reading import read_line
from rollproof.properties.audit.recorder import Recorder
from rollproof.properties.audit.stored import LineError
from rollproof.properties.cli import main
from rollproof.properties.errors import InputError
from rollproof.properties.gate.run import exercise
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.spec.constants import MEDIA_BLAKE3
from rollproof.spec.cut_records import CutOrder, DurableFailure, RunningCall
from rollproof.spec.judge.requests import Area
from rollproof.spec.rejections import Rejected

SCHEMA = json.loads(files("rollproof.properties.audit").joinpath("schema.json").read_text(encoding="utf-8"))
CALL = RunningCall("g7_g0", "c1", None, None, (), (10, 11))
OTHER = RunningCall("g7_g1", "c1", None, None, (), (20,))
KEY = "__generation_cut__/step_100/g7_g0/c1/0"
ORDER = CutOrder("step_100", 16)


class Plane(MemoryDataPlane):
    """A data plane that does what it is asked, and then says that it failed."""

    failing = ""

    def get_samples(self, *args, **kwargs):
        if self.failing == "get":
            raise TimeoutError("no answer")
        return super().get_samples(*args, **kwargs)

    def put_samples(self, *args, **kwargs):
        super().put_samples(*args, **kwargs)
        if self.failing == "put":
            raise TimeoutError("no answer")

    def clear_samples(self, *args, **kwargs):
        super().clear_samples(*args, **kwargs)
        if self.failing == "clear":
            raise TimeoutError("no answer")


def media(value):
    """Return the media of a call with one image at its first token."""
    item = {
        "modality": "image",
        "placeholder_offset": 0,
        "placeholder_length": 1,
        "placeholder_digest": "6ec91ed8b8a2d60d7b1eeaaa7d4a8bf2ea4b5b2b94f1ea8bc9e4b21b8ab12bc3",
        "token_id": 10,
        "embedding_spans": [[0, 1]],
        "imgs_sizes": [[2, 2]],
    }
    pixels = torch.full((1, 4, 3), value, dtype=torch.bfloat16)
    return CallMedia([item], {"imgs": pixels, "imgs_sizes": torch.tensor([[2, 2]])})


def generated(call, *tokens, version=4):
    generation = Generation(call)
    generation.append(list(tokens), [-0.1] * len(tokens), version)
    return generation


def record(path, media=None, dtype=None, routes=False, scheme=None):
    """Record two workers: cuts, a failure of each kind, a restore, a refused one, completions, an abandoned call."""
    plane = Plane()
    with Recorder(path, plane) as recorder:
        first = recorder.watch_cuts(CutStore(recorder.client, "staging", dtype, scheme))
        left, right = generated(CALL, 12, 13), generated(OTHER, 21)
        assert isinstance(first.cut(Generation(CALL), ORDER, media), DurableFailure)
        first.cut_all([(left, ORDER, media), (right, ORDER, None), (left, ORDER, media)])
        left.append([14], [-0.3], 4, text="ä".encode()[:1])
        assert isinstance(first.cut(left, ORDER), DurableFailure)
        left.append([15], [-0.4], 5, text="ä".encode()[1:])
        plane.failing = "put"
        assert isinstance(first.cut(left, ORDER), DurableFailure)
        plane.failing = ""
        promise = first.cut(left, ORDER)
        assert first.cut(left, ORDER) == promise
        assert first.abandon(right) == 0

        second = recorder.watch_cuts(CutStore(recorder.client, "staging", dtype))
        fresh = None if media is None else CallMedia(media.spans, dict(media.tensors))
        with pytest.raises(Rejected):
            second.restore(CALL, evolve(promise, prefix_token_count=3), weight_version=5, fresh=fresh)
        restored = second.restore(CALL, promise, weight_version=5, fresh=fresh).generation
        restored.append([16], [-0.5], 5)
        assert second.cut(restored, ORDER).prefix_token_count == 5
        restored.append([17], [-0.6], 6)
        plane.failing = "clear"
        given = {"routes": torch.zeros(8, 1, 2, dtype=torch.int16), "prefills": [(0, 3)]} if routes else {}
        assert second.complete(restored, "c2", fresh, **given).failed_clears == 1
        plane.failing = ""
        second.complete(restored, "c2", fresh, **given)  # the row is there, and is not put again
        restored.append([18], [-0.6], 6)
        with pytest.raises(ValueError, match="another call is staged"):
            second.complete(restored, "c2", fresh)
        with pytest.raises(ValueError, match="generated tokens"):
            second.complete(Generation(CALL), "c3")
    assert recorder.lost == 0
    return path


def run(path, *arguments):
    return CliRunner().invoke(main, ["audit", "--jobs", "1", str(path), *map(str, arguments)])


def edited(path, number, edit):
    """Edit the JSON of one line."""
    lines = path.read_text().splitlines()
    content = json.loads(lines[number])
    edit(content)
    lines[number] = json.dumps(content)
    path.write_text("\n".join(lines) + "\n")


def of_kind(path, kind, *holding):
    """Return the numbers of the lines of a kind that have these effects."""
    lines = map(json.loads, path.read_text().splitlines())
    names = [(line["kind"], *(next(iter(effect)) for effect in line["effects"])) for line in lines]
    return [number for number, (found, *effects) in enumerate(names) if found == kind and effects == list(holding)]


@pytest.mark.parametrize("routes", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_recorded_run_of_ours_is_clean(tmp_path, dtype, routes):
    path = record(tmp_path / "run.jsonl", dtype=dtype, routes=routes)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for line in path.read_bytes().splitlines():
        validator.validate(json.loads(line))
        verdict = judge(read_line(line, path))
        assert verdict.broken == (), verdict.broken
    done = run(path, "--report", tmp_path / "report.json", "--html", tmp_path / "report.html")
    assert done.exit_code == 0, done.output
    counts = "9 cuts, 2 restores, 5 completions (2 not judged): all as required"
    assert counts in " ".join(done.output.split())
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["cut_calls"] == {"abandoned": 1, "completed": 1}
    assert "9 cuts" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("scheme", [None, MEDIA_BLAKE3])
def test_recorded_media_are_judged(tmp_path, scheme):
    """The second worker's store may have another scheme: the chunk says which."""
    path = record(tmp_path / "run.jsonl", media=media(1.0), dtype=torch.bfloat16, scheme=scheme)
    done = run(path)
    assert done.exit_code == 0, done.output
    (number,) = of_kind(path, "restore", "get")[1:]

    def other_pixels(line):
        line["request"]["tensors"][0]["tensor"]["data"] = base64.b64encode(bytes(24)).decode()

    edited(path, number, other_pixels)
    assert "CUTS-11" in run(path).output


@pytest.mark.parametrize("examples", [6, pytest.param(100, marks=pytest.mark.deep)])
def test_whatever_ours_does_with_cuts_is_recorded_and_held(tmp_path, monkeypatch, examples):
    """Every request of the gate, with faults, odd media and workers that die; only media without bytes are lost."""
    numbers, verdicts, recorders = count(), [], []

    def watched(plane, *arguments):
        recorders.append(Recorder(tmp_path / f"{next(numbers)}.jsonl", plane, inline_bytes=64).__enter__())
        return recorders[-1].watch_cuts(CutStore(recorders[-1].client, *arguments))

    monkeypatch.setattr(our_cuts.cuts, "CutStore", watched)

    def body(request):
        recorders.clear()
        ask(Ours(), realize_request(request))
        for recorder in recorders:
            recorder.close()
            for line in recorder.path.read_bytes().splitlines():
                if recorder.lost:
                    assert b"without bytes of its own" in line
                    continue
                verdict = judge(read_line(line, recorder.path))
                assert verdict.broken == (), verdict.broken
                verdicts.append(verdict)

    for stream in request_streams(Area.CUTS):
        exercise(stream.strategy, body, examples, 1, (Phase.generate,))
    kinds = Counter(verdict.kind for verdict in verdicts)
    assert min(kinds["cut"], kinds["restore"], kinds["completion"]) > 10, kinds
    assert sum(verdict.cut.unjudged for verdict in verdicts) < len(verdicts) / 10


def swap(line):
    column = line["effects"][0]["put"]["rows"]["columns"]["token_ids_delta"]
    tokens = np.frombuffer(base64.b64decode(column["data"]), column["dtype"]).copy()
    assert tokens[2:4].tolist() == [12, 13]
    tokens[2:4] = tokens[[3, 2]]
    column["data"] = base64.b64encode(tokens.tobytes()).decode()


def promise_more(line):
    line["cuts"][0]["answer"]["prefix_token_count"] += 1


def clear_more(line):
    line["effects"][-1]["clear"]["keys"].append("__generation_cut__/step_100/g8_g0/c1/0")


@pytest.mark.parametrize(
    ("kind", "effects", "edit", "broken"),
    [
        ("cut", ["put"], swap, "CUTS-3"),
        ("cut", ["put"], promise_more, "CUTS-3"),
        ("cut", ["put", "clear"], clear_more, "CUTS-5"),
        ("completion", ["get", "put", "clear"], clear_more, "CUTS-8"),
    ],
)
def test_a_wrong_recording_is_broken(tmp_path, kind, effects, edit, broken):
    path = record(tmp_path / "run.jsonl")
    number = of_kind(path, kind, *effects)[0]
    edited(path, number, edit)
    assert broken in dict(judge(read_line(path.read_bytes().splitlines()[number], path)).broken)
    done = run(path, "--report", tmp_path / "report.json", "--html", tmp_path / "report.html")
    assert done.exit_code == 1
    assert f"run.jsonl:{number + 1}: call g7_g0/c1" in done.output
    (finding,) = json.loads((tmp_path / "report.json").read_text())["findings"]
    assert broken in [one["id"] for one in finding["invariants"]]
    assert broken in (tmp_path / "report.html").read_text()


WRONG_STORES = {
    "CUTS-2": ("CutStore._put", lambda self, writes: None),
    "CUTS-8": ("CutStore._clear", lambda self, keys: 0),
    "CUTS-16": ("restored_routes", lambda routes, *_: routes),
}


@pytest.mark.parametrize("broken", WRONG_STORES)
def test_a_wrong_store_is_seen(tmp_path, monkeypatch, broken):
    name, wrong = WRONG_STORES[broken]
    path = tmp_path / "run.jsonl"
    with Recorder(path, Plane()) as recorder:
        store = recorder.watch_cuts(CutStore(recorder.client, "staging"))
        promise = store.cut(generated(CALL, 12), ORDER)
        generation = store.restore(CALL, promise, weight_version=4).generation
        generation.append([13], [-0.2], 4)
        monkeypatch.setattr(f"rollproof.impl.cuts.{name}", wrong)
        store.cut(generation, ORDER)
        store.complete(generation, "c2", routes=torch.zeros(4, 1, 2, dtype=torch.int16), prefills=[])
    done = run(path)
    assert done.exit_code == 1
    assert broken in done.output


def test_what_is_completed_is_what_was_acknowledged(tmp_path):
    """A line is right by itself: only the promise says that the worker's memory was another one."""
    plane, path = Plane(), tmp_path / "run.jsonl"
    with Recorder(path, plane) as recorder:
        store = recorder.watch_cuts(CutStore(recorder.client, "staging"))
        generation = generated(CALL, 12, 13)
        store.cut(generation, ORDER)
        generation.token_ids.reverse()
        store.complete(generation, "c2")
    assert all(judge(read_line(line, path)).held for line in path.read_bytes().splitlines())
    done = run(path)
    assert done.exit_code == 1
    assert "CONTINUED" in done.output
    assert run(path, "--skip", "CONTINUED").exit_code == 0


def test_a_final_row_is_put_once(tmp_path):
    """Two workers complete a call under one id, and the data plane lost what the first one put."""
    plane, path = Plane(), tmp_path / "run.jsonl"
    with Recorder(path, plane) as recorder:
        store = recorder.watch_cuts(CutStore(recorder.client, "staging"))
        for last in (13, 14):
            store.complete(generated(CALL, 12, last), "c2")
            plane.clear_samples(None, "staging")
    done = run(path)
    assert done.exit_code == 1
    assert "RECUT" in done.output
    assert run(path, "--skip", "RECUT").exit_code == 0


def test_errors_reach_the_worker_and_are_no_refusals(tmp_path):
    plane, path = Plane(), tmp_path / "run.jsonl"
    with Recorder(path, plane) as recorder:
        store = recorder.watch_cuts(CutStore(recorder.client, "staging"))
        generation = generated(CALL, 12)
        promise = store.cut(generation, ORDER)
        plane.failing = "put"
        with pytest.raises(TimeoutError):
            store.complete(generation, "c2")
        plane.failing = "get"
        with pytest.raises(TimeoutError):
            store.restore(CALL, promise, weight_version=4)
    done = run(path)
    assert done.exit_code == 0, done.output
    assert "1 cuts, 1 restores, 1 completions (2 not judged)" in " ".join(done.output.split())
    (number,) = of_kind(path, "completion", "get", "put")
    edited(path, number, lambda line: line["effects"].append({"clear": {"partition": "staging", "keys": ["x"]}}))
    assert "CUTS-8" in run(path).output


def test_a_call_that_cannot_be_recorded_is_lost_and_goes_on(tmp_path):
    plane, path = Plane(), tmp_path / "run.jsonl"
    with Recorder(path, plane) as recorder:
        store = recorder.watch_cuts(CutStore(recorder.client, "staging"))
        odd = CallMedia([], {"imgs": torch.ones(2).to_sparse()})
        assert isinstance(store.cut(generated(CALL, 12), ORDER, odd), DurableFailure)
    assert recorder.lost == 1
    assert "could not be recorded: TypeError: media 'imgs'" in " ".join(run(path).output.split())


def test_a_store_over_another_client_is_not_watched(tmp_path):
    with (
        Recorder(tmp_path / "run.jsonl", Plane()) as recorder,
        pytest.raises(InputError, match="dp_client: got a Plane, expected the recorder's client"),
    ):
        recorder.watch_cuts(CutStore(Plane(), "staging"))


def test_what_is_appended_during_a_cut_belongs_to_the_next(tmp_path):
    path = tmp_path / "run.jsonl"

    class Engine(Plane):
        def put_samples(self, *args, **kwargs):
            super().put_samples(*args, **kwargs)
            generation.append([13], [-0.2], 5)

    generation = generated(CALL, 12)
    with Recorder(path, Engine()) as recorder:
        store = recorder.watch_cuts(CutStore(recorder.client, "staging"))
        assert [store.cut(generation, ORDER).prefix_token_count for _ in range(2)] == [1, 2]
    assert "2 cuts, 0 restores, 0 completions: all as required" in " ".join(run(path).output.split())


@pytest.mark.parametrize("odd", [None, 7, {}, [{}], {"kind": "PlayCuts"}, {"kind": "ParseCutKey", "key": "x"}])
def test_a_malformed_line_is_a_clear_error(tmp_path, odd):
    path = record(tmp_path / "run.jsonl")
    firsts = {json.loads(line)["kind"]: json.loads(line) for line in path.read_bytes().splitlines()}
    required = {"cut": ("partition", "cuts", "effects"), **dict.fromkeys(("restore", "completion"), ("request",))}
    for kind, names in required.items():
        for name in names:
            line = firsts[kind]
            with pytest.raises(LineError, match=f"'{name}' is missing"):
                judge(read_line(json.dumps({key: line[key] for key in line if key != name}).encode(), path))
            with pytest.raises(LineError):
                judge(read_line(json.dumps(line | {name: odd}).encode(), path))


@pytest.mark.parametrize(
    "answer", [{"prefix_digest": []}, {"prefix_digest": 7}, {"staging_keys": [["x"]]}, {"staging_keys": []}]
)
def test_a_promise_of_another_type_is_a_clear_error(tmp_path, answer):
    path = record(tmp_path / "run.jsonl")
    edited(path, 1, lambda line: line["cuts"][0]["answer"].update(answer))
    done = run(path)
    assert done.exit_code == 2, done.output
    assert "run.jsonl:2: a promise of" in done.output


def test_routes_and_prefixes_are_bounded(tmp_path, monkeypatch):
    path = record(tmp_path / "run.jsonl", routes=True)
    edited(path, 10, lambda line: line["routes"]["routes"].update(shape=[2**40, 0, 0], data=""))
    lines = path.read_bytes().splitlines()
    with pytest.raises(LineError, match="expected at most 1,048,576 tokens"):
        read_line(lines[10], path)
    monkeypatch.setattr(reading_cuts, "MOST_HASHED", 3)
    with pytest.raises(LineError, match="a prefix of 6 tokens: expected at most 3"):
        read_line(lines[8], path)


def test_a_line_that_asks_for_too_much_is_refused(tmp_path):
    path = record(tmp_path / "run.jsonl")
    line = json.loads(path.read_bytes().splitlines()[1])
    request = line["cuts"][0]["request"]
    request["steps"] *= 5000
    request["steps"][0] = request["steps"][0] | {"token_ids": [1] * 5000, "log_probs": [0.0] * 5000}
    with pytest.raises(LineError, match="more than the spec can hash"):
        read_line(json.dumps(line).encode(), path)
