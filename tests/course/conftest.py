import pytest

from picolib.course import state


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """An empty workspace that the course finds."""
    folder = tmp_path / "workspace"
    (folder / state.MARK).mkdir(parents=True)
    monkeypatch.setenv("PICOLIB_WORKSPACE", str(folder))
    return folder


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No workspace at all."""
    monkeypatch.delenv("PICOLIB_WORKSPACE", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(state, "_memory", {})
    return tmp_path
