"""The extraction fixture: the canned prompts through the session's engine into a dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.data import data_path
from harness.dataset.verify import verify
from harness.plugin.sample import read
from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]

SHAPES = """
    def test_samples(extraction, engine):
        assert engine.loads == 1
        result = extraction.result
        assert len(extraction.samples) == result.samples > 5
        assert sum(sample.tokens for sample in extraction.samples) == result.tokens
        for line, sample in zip(extraction.manifest, extraction.samples, strict=True):
            assert sample.id == line.id
            assert sample.tokens == line.tokens
            assert sample.depths == engine.depths
        assert extraction.out == result.out
"""


def test_extraction_leaves_a_dataset_that_verifies(inner: Inner, tmp_path: Path) -> None:
    out = tmp_path / "dataset"
    result = inner.run(SHAPES, f"--hs-out={out}")
    result.assert_outcomes(passed=1)
    assert inner.python.loads == 1
    report = verify(out)
    assert report.ok, report
    result.stdout.fnmatch_lines(
        ["engine: 1 load in * s, canary passed", f"extraction: 13 samples, * tokens/s, in {out}"]
    )


def test_same_run_into_the_same_folder_goes_on_where_it_ended(inner: Inner) -> None:
    source = """
        def test_kept(extraction):
            print("kept", extraction.result.kept)
    """
    out = inner.pytester.path / "dataset"
    inner.run(source, f"--hs-out={out}").assert_outcomes(passed=1)
    (out / "hs_2.safetensors").unlink()
    result = inner.run(source, f"--hs-out={out}", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*kept 12"])
    assert verify(out).ok


def test_prompts_are_those_of_the_setting(inner: Inner) -> None:
    prompts = inner.pytester.path / "mine.jsonl"
    prompts.write_text('{"id": "b", "input_ids": [3, 1]}\n{"id": "a", "input_ids": [2]}\n')
    result = inner.run(
        """
        import pytest
        from harness.errors import UsageError

        def test_mine(extraction):
            assert extraction.samples.ids == ("b", "a")
            assert extraction.samples.named("a").token_ids.tolist() == [2]
            assert extraction.samples[-1].id == "a"
            assert [sample.id for sample in extraction.samples[:1]] == ["b"]
            with pytest.raises(UsageError, match="extraction.no-such-prompt"):
                extraction.samples.named("c")
        """,
        f"--hs-prompts={prompts}",
    )
    result.assert_outcomes(passed=1)


def test_bad_prompts_fail_the_extraction_and_not_the_engine(inner: Inner) -> None:
    prompts = inner.pytester.path / "mine.jsonl"
    prompts.write_text('{"input_ids": [3, 1]}\n{"input_ids": [9999]}\n')
    result = inner.run(
        """
        def test_extraction(extraction):
            pass

        def test_engine(engine):
            engine.hidden_states([[1, 2]])
        """,
        f"--hs-prompts={prompts}",
    )
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*prompts.id-out-of-vocabulary*"])


def test_wrong_rows_are_not_published(inner: Inner, tmp_path: Path) -> None:
    inner.python.behave(extract="wrong")
    out = tmp_path / "dataset"
    inner.run(SHAPES, f"--hs-out={out}").assert_outcomes(errors=1)
    assert not list(out.glob("hs_*"))


def test_canned_prompts_come_with_the_harness() -> None:
    assert data_path("prompts/mixed.jsonl").is_file()


def test_sample_reader_knows_depths_and_exact_values(inner: Inner, tmp_path: Path) -> None:
    out = tmp_path / "dataset"
    result = inner.run(
        """
        import numpy as np
        import sys

        def test_reader(extraction, sample_reader):
            for line, sample in zip(extraction.manifest, extraction.samples):
                found = sample_reader(extraction.out / line.file)
                assert found.depths == sample.depths == (1, 3, 4, 6)
                assert np.array_equal(found.hidden_states, sample.hidden_states)
                assert found.token_ids.tolist() == sample.token_ids.tolist()
                assert found.path == extraction.out / line.file
        """,
        f"--hs-out={out}",
    )
    result.assert_outcomes(passed=1)
    alone = tmp_path / "hs_0.safetensors"
    alone.write_bytes((out / "hs_0.safetensors").read_bytes())
    assert read(alone).depths == ()
    assert read(str(alone)).id == "hs_0"


def test_bfloat16_is_shown_as_float32_and_kept_as_bits(tmp_path: Path) -> None:
    import json
    import struct

    bits = np.array([[[0x3F80, 0x4049]], [[0xC000, 0x0001]]], dtype="<u2")
    body, ids = bits.tobytes(), np.array([5, 6], dtype="<i8").tobytes()
    header = json.dumps(
        {
            "hidden_states": {"dtype": "BF16", "shape": [2, 1, 2], "data_offsets": [0, 8]},
            "token_ids": {"dtype": "I64", "shape": [2], "data_offsets": [8, 24]},
        }
    ).encode()
    path = tmp_path / "hs_0.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + body + ids)
    sample = read(path)
    assert sample.dtype == "bfloat16"
    assert sample.stored.dtype == np.uint16
    assert sample.hidden_states.dtype == np.float32
    assert sample.hidden_states[0, 0].tolist() == [1.0, 3.140625]
    assert sample.hidden_states[1, 0].tolist() == [-2.0, 2.0**-133]


def test_depth_that_was_not_captured_is_a_clear_error(tmp_path: Path) -> None:
    from harness.errors import UsageError
    from harness.plugin.sample import Sample

    sample = Sample(
        id="p",
        token_ids=np.array([1]),
        dtype="float32",
        stored=np.zeros((1, 2, 3), dtype=np.float32),
        depths=(2, 6),
    )
    assert sample.at(6).shape == (1, 3)
    with pytest.raises(UsageError, match=r"sample\.no-such-depth"):
        sample.at(3)
