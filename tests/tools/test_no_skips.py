"""Where nothing may be skipped, a skip fails and says what was missing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]")
    return pytester


def test_a_skipped_test_fails_with_its_reason(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        import pytest

        def test_passes():
            pass

        def test_skips():
            pytest.skip("no engine here")

        @pytest.mark.skipif(True, reason="not on this machine")
        def test_skips_by_mark():
            pass

        @pytest.mark.xfail(strict=True)
        def test_is_known_to_fail():
            assert False
        """
    )
    result = run.runpytest_subprocess("-p", "tools.no_skips")

    result.assert_outcomes(passed=1, failed=1, errors=1, xfailed=1)
    result.stdout.fnmatch_lines_random(["*no engine here*", "*not on this machine*"])


def test_a_file_that_skips_itself_fails(run: pytest.Pytester) -> None:
    run.makepyfile('import pytest\npytest.importorskip("no_such_library")')
    result = run.runpytest_subprocess("-p", "tools.no_skips")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*no_such_library*"])


def test_without_it_skips_are_allowed(run: pytest.Pytester) -> None:
    run.makepyfile('import pytest\ndef test_skips():\n    pytest.skip("fine")')
    run.runpytest_subprocess().assert_outcomes(skipped=1)
