"""Finds pip's own wheel for an environment that has no pip: `_pip_wheel.py FOLDER` puts it there.

For machines whose Python comes without `ensurepip`. Its one rule: no address is written here. The
wheel comes from where this machine is told to get packages, in this order:

1. the folder of wheels that the system keeps for this Python (Debian, Fedora);
2. any other pip on this machine, which knows its own index;
3. the index and the links that pip's environment variables and configuration files name, read
   with nothing but the standard library.
"""

from __future__ import annotations

import base64
import configparser
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

# Finished releases only: a pre-release has letters in its version.
WHEEL_NAME = re.compile(r"pip-([0-9]+(?:\.[0-9]+)*)-(?:py2\.)?py3-none-any\.whl")
TIMEOUT_S = 60
HELP = """\
shardnode: this Python has no ensurepip and no pip was found. One of these helps:
  - install your system's packages for it (Debian, Ubuntu: python3-venv);
  - set PIP_INDEX_URL to the address of your package index (the one that ends in /simple)."""


class NotFound(Exception):
    """This source has no pip for us; the message says why."""


@dataclass(slots=True)
class Sources:
    """Where pip is configured to look."""

    indexes: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    certificates: str | None = None


class LinkParser(HTMLParser):
    """Collects (address, requires-python) from a page of links, without what was withdrawn."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and values.get("href") and "data-yanked" not in values:
            self.found.append((values["href"] or "", values.get("data-requires-python") or ""))


def version_of(name: str) -> tuple[int, ...] | None:
    """The version in the name of a finished pip wheel, else None."""
    match = WHEEL_NAME.fullmatch(name)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def runs_here(requires_python: str) -> bool:
    """Whether a `Requires-Python` lets this Python in; only lower bounds matter for pip."""
    bounds = re.findall(r">=?\s*([0-9]+(?:\.[0-9]+)*)", requires_python)
    return all(tuple(int(p) for p in bound.split(".")) <= sys.version_info[:3] for bound in bounds)


def from_system_folder(folder: Path) -> Path:
    kept = sysconfig.get_config_var("WHEEL_PKG_DIR")
    if not kept:
        raise NotFound("this Python names no folder of system wheels")
    return newest_in(Path(kept), folder)


def newest_in(source: Path, folder: Path) -> Path:
    """Copies the newest pip wheel of a local folder."""
    versions = {version: p for p in source.glob("pip-*.whl") if (version := version_of(p.name))}
    if not versions:
        raise NotFound(f"no pip wheel in {source}")
    return Path(shutil.copy(versions[max(versions)], folder))


def from_another_pip(folder: Path) -> Path:
    pythons = [sys.executable, *(f"python3.{minor}" for minor in (14, 13, 12, 11)), "python3"]
    commands = [*([python, "-P", "-m", "pip"] for python in pythons), ["pip3"], ["pip"]]
    options = ["download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    last = "there is no other pip on this machine"
    for command in commands:
        arguments = [*command, *options, "--only-binary=:all:", "--dest", str(folder), "pip"]
        try:
            done = subprocess.run(arguments, capture_output=True, text=True)
        except OSError:
            continue
        if done.returncode == 0 and (wheels := list(folder.glob("pip-*.whl"))):
            return wheels[0]
        if "No module named pip" not in done.stderr:
            last = f"{' '.join(command)}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}"
    raise NotFound(last)


def from_configured_sources(folder: Path) -> Path:
    sources = configured_sources(os.environ)
    pages = [index.rstrip("/") + "/pip/" for index in sources.indexes]
    reasons = []
    for address in [*sources.links, *pages]:
        try:
            return from_address(address, folder, sources.certificates)
        except (NotFound, OSError, ValueError) as error:
            reasons.append(f"{without_password(address)}: {error}")
    raise NotFound("; ".join(reasons) or "no package index is configured for pip")


def configured_sources(environ: os._Environ[str] | dict[str, str]) -> Sources:
    """What pip would read: its files, the later ones ruling, then its environment variables."""
    settings: dict[str, str] = {}
    for path in configuration_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            print(f"shardnode: {path} is left out: {error}", file=sys.stderr)
        for section in ("global", "download", "install"):
            if parser.has_section(section):
                settings.update(parser.items(section))
    for name in ("index-url", "extra-index-url", "find-links", "cert", "no-index"):
        if value := environ.get("PIP_" + name.upper().replace("-", "_")):
            settings[name] = value
    indexes = settings.get("index-url", "").split() + settings.get("extra-index-url", "").split()
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        indexes = []
    return Sources(indexes, settings.get("find-links", "").split(), settings.get("cert"))


def configuration_files(environ: os._Environ[str] | dict[str, str]) -> Iterator[Path]:
    """pip's files for the machine, the user and this installation, then the one named by hand."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:  # pip's way to ask for no files at all
        return
    home = Path(environ.get("HOME", "~")).expanduser()
    for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"):
        yield Path(folder, "pip", "pip.conf")
    yield Path("/etc/pip.conf")
    yield home / ".pip" / "pip.conf"
    yield home / "Library" / "Application Support" / "pip" / "pip.conf"
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "pip", "pip.conf")
    yield Path(sys.prefix, "pip.conf")
    if named:
        yield Path(named)


def from_address(address: str, folder: Path, certificates: str | None) -> Path:
    """The newest pip wheel behind a folder, a page of links, or the address of a local copy."""
    local = Path(urllib.request.url2pathname(urllib.parse.urlsplit(address).path))
    if urllib.parse.urlsplit(address).scheme in ("", "file") and local.is_dir():
        if not (local / "index.html").is_file():
            return newest_in(local, folder)
        address = (local / "index.html").as_uri()
    parser = LinkParser()
    page, base = read(address, certificates)
    parser.feed(page.decode("utf-8", "replace"))
    found: dict[tuple[int, ...], str] = {}
    for reference, requires_python in parser.found:
        target = urllib.parse.urljoin(base, reference)
        name = urllib.parse.unquote(urllib.parse.urlsplit(target).path).rpartition("/")[2]
        if (version := version_of(name)) and runs_here(requires_python):
            found[version] = target
    if not found:
        raise NotFound("no pip wheel for this Python is listed")
    return save(found[max(found)], folder, certificates)


def save(target: str, folder: Path, certificates: str | None) -> Path:
    """Downloads a wheel and checks it against the checksum in its address, if there is one."""
    wheel, _ = read(target, certificates)
    parts = urllib.parse.urlsplit(target)
    algorithm, _, expected = parts.fragment.partition("=")
    if algorithm in hashlib.algorithms_guaranteed and expected:
        actual = hashlib.new(algorithm, wheel).hexdigest()
        if actual != expected:
            raise NotFound(f"the wheel has {algorithm} {actual}, the index says {expected}")
    path = folder / urllib.parse.unquote(parts.path).rpartition("/")[2]
    path.write_bytes(wheel)
    return path


def read(address: str, certificates: str | None) -> tuple[bytes, str]:
    """The bytes behind an address, and the address they came from in the end."""
    parts = urllib.parse.urlsplit(address)
    headers = {"Accept": "text/html, */*;q=0.1", "User-Agent": "shardnode-setup"}
    if parts.username:
        user = urllib.parse.unquote(parts.username)
        password = urllib.parse.unquote(parts.password or "")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {token}"
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(address.partition("#")[0], headers=headers)
    context = ssl.create_default_context(cafile=certificates) if parts.scheme == "https" else None
    with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as reply:
        body: bytes = reply.read()
        return body, reply.url


def without_password(address: str) -> str:
    """For messages: addresses of private indexes carry secrets."""
    parts = urllib.parse.urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def main(argv: list[str]) -> int:
    folder = Path(argv[0])
    reasons = []
    for source in (from_system_folder, from_another_pip, from_configured_sources):
        try:
            wheel = source(folder)
        except (NotFound, OSError) as error:
            reasons.append(str(error))
        else:
            print(f"shardnode: found {wheel.name}", file=sys.stderr)
            return 0
    print(HELP, "Tried:", *(f"  - {reason}" for reason in reasons), sep="\n", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
