"""Downloads from a local HTTP server that can break connections, ignore ranges and serve wrong files."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedflat.data.catalogue import DATASETS, RemoteFile
from fedflat.data.prepare import ATTEMPTS, download_files
from fedflat.errors import UserError

CONTENT = bytes(range(256)) * 4000


class Server(ThreadingHTTPServer):
    """Serves `files`, closes the connection after `cuts.pop(0)` bytes, and records the Range of every request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cuts, self.ranges, self.accepts_ranges = {}, [], [], True

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        data = self.server.files.get(self.path)
        if data is None:
            return self.send_error(404)
        start = int(wanted[6:-1]) if wanted and self.server.accepts_ranges else 0
        if start and start >= len(data):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else None
        self.wfile.write(data[start:][:cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        server.files["/file.bin"] = CONTENT
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def remote(server, content=CONTENT):
    return RemoteFile(f"{server.url}/file.bin", "md5:" + hashlib.md5(content).hexdigest())


def download(server, folder, content=CONTENT):
    download_files("toy", [remote(server, content)], folder, progress=False)
    return (folder / "file.bin").read_bytes()


def test_a_file_is_downloaded_once(server, tmp_path):
    assert download(server, tmp_path) == CONTENT
    assert download(server, tmp_path) == CONTENT
    assert server.ranges == [None]
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def test_a_file_that_was_damaged_on_disk_is_downloaded_again(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"damaged")
    assert download(server, tmp_path) == CONTENT


@pytest.mark.parametrize("served", [CONTENT[:-1], b"x" + CONTENT[1:]], ids=["truncated", "altered"])
def test_the_error_for_a_wrong_hash_is_one_line_and_no_file_is_left(server, tmp_path, served):
    server.files["/file.bin"] = served
    with pytest.raises(
        UserError, match=r"/file.bin: the file has not the expected hash and was removed.*toy --from"
    ) as e:
        download(server, tmp_path)
    assert "\n" not in str(e.value)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_download_continues_in_the_same_call(server, tmp_path):
    server.cuts = [300_000, 200_000]
    assert download(server, tmp_path) == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=500000-"]


def test_an_interrupted_download_continues_in_the_next_call(server, tmp_path):
    server.cuts = [100_000] + [0] * (ATTEMPTS - 1)
    with pytest.raises(UserError, match=r"the connection broke at 100000 of 1024000 bytes; run the command again"):
        download(server, tmp_path)
    server.ranges.clear()
    assert download(server, tmp_path) == CONTENT
    assert server.ranges == ["bytes=100000-"]


def test_a_server_without_ranges_starts_from_the_beginning(server, tmp_path):
    server.accepts_ranges = False
    server.cuts = [300_000]
    assert download(server, tmp_path) == CONTENT


def test_a_part_that_is_longer_than_the_file_is_dropped(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    assert download(server, tmp_path) == CONTENT
    assert server.ranges == [f"bytes={len(CONTENT) + 4}-", None]


def test_the_error_for_a_missing_file_has_the_status_of_the_server(server, tmp_path):
    del server.files["/file.bin"]
    with pytest.raises(UserError, match=r"the server answered 404 Not Found.*fedflat data prepare toy --from PATH"):
        download(server, tmp_path)


def test_the_error_without_a_network_is_one_line_with_advice(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(
        UserError, match=r"cannot be downloaded \(.*refused.*\); check the network, or fetch it by"
    ) as error:
        download(server, tmp_path)
    assert "\n" not in str(error.value)


def test_a_mirror_replaces_the_address_but_not_the_hash(server, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFLAT_MIRROR", server.url + "/copy/")
    server.files["/copy/toy/file.bin"] = CONTENT
    elsewhere = RemoteFile("http://unreachable.invalid/data/file.bin", remote(server).hash)
    download_files("toy", [elsewhere], tmp_path, progress=False)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_the_error_for_a_mirror_that_is_no_address_names_it(server, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFLAT_MIRROR", "nonsense")
    with pytest.raises(UserError, match=r"nonsense/toy/file.bin: cannot be downloaded"):
        download(server, tmp_path)


def test_a_set_is_downloaded_and_prepared(server, tmp_path, monkeypatch):
    import dataclasses
    import io

    import numpy as np

    from fedflat.data import load, prepare
    from fedflat.data.catalogue import DATASETS

    splits = {"train": 5, "val": 2, "test": 3}
    arrays = {f"{split}_images": np.full((n, 28, 28), n, np.uint8) for split, n in splits.items()}
    arrays |= {f"{split}_labels": np.full((n, 1), n) for split, n in splits.items()}
    file = io.BytesIO()
    np.savez(file, **arrays)
    server.files["/tissuemnist/tissuemnist.npz"] = file.getvalue()
    published = RemoteFile(DATASETS["tissuemnist"].files[0].url, "md5:" + hashlib.md5(file.getvalue()).hexdigest())
    monkeypatch.setitem(DATASETS, "tissuemnist", dataclasses.replace(DATASETS["tissuemnist"], files=(published,)))
    monkeypatch.setenv("FEDFLAT_MIRROR", server.url)
    prepare.prepare_dataset("tissuemnist", None, tmp_path, progress=False)
    data = load.load_dataset("tissuemnist", tmp_path)
    assert data.y.tolist() == [5] * 5 + [2] * 2
    assert data.x.shape == (7, 1, 28, 28)


def test_a_set_with_a_wrong_hash_is_not_prepared(server, tmp_path, monkeypatch):
    from fedflat.data.prepare import prepare_dataset

    monkeypatch.setenv("FEDFLAT_MIRROR", server.url)
    server.files["/cifar10/cifar-10-python.tar.gz"] = b"not the archive"
    with pytest.raises(UserError, match=r"cifar-10-python.tar.gz: the file has not the expected hash"):
        prepare_dataset("cifar10", None, tmp_path, progress=False)
    assert not list(tmp_path.rglob("*.*"))


def test_sha256_is_checked_beside_md5(server, tmp_path):
    good = remote(server)._replace(sha256=hashlib.sha256(CONTENT).hexdigest())
    download_files("toy", [good], tmp_path, progress=False)
    with pytest.raises(UserError, match="has not the expected hash and was removed"):
        download_files("toy", [good._replace(sha256="0" * 64)], tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_published_files_come_over_https():
    remotes = [remote for spec in DATASETS.values() for remote in spec.files]
    assert all(remote.url.startswith("https://") for remote in remotes)
    assert {len(remote.sha256) for remote in remotes} == {0, 64}
