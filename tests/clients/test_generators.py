"""Issue 15, 4: the generators of others take api/openapi.yaml as it is, and what they generate talks to a server."""
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT, run_checked
from lib.openapi_client import OPERATIONS
from lib.refdata import module_refdata_db, pod, write_builtin  # noqa: F401

HERE = Path(__file__).parent
FILE = ROOT / "api/openapi.yaml"
# What openapi-python-client has no parser for. The operation is generated, and its answer is read from `content`.
UNPARSED = {"Unsupported content_type application/yaml"}


@pytest.fixture(scope="module")
def server(module_serve, module_refdata_db):
    write_builtin(module_refdata_db, "COUNTRY", {"DE": {"name": "Germany"}, "a,b": 1, "JP": [1, None]}, version=4)
    return module_serve(module_refdata_db, {**pod("COUNTRY", "FEATURE"), "debug": {"enabled": True}})


@pytest.fixture
def asking(server, token):
    """What a program needs to know to call the server."""
    return {"FRESHET_URL": f"http://127.0.0.1:{server.port}",
            "FRESHET_TOKEN": token(scope="entitlement:write entitlement:read notification:read ops:read ops:write")}


def test_a_validator_finds_nothing(python_tools):
    assert "OK" in run_checked(python_tools / "bin/openapi-spec-validator", FILE)


def test_the_types_of_the_python_client_are_those_of_the_file():
    run_checked("/usr/bin/python3", "-B", ROOT / "tools/client_types.py", "--check")


# ---- openapi-python-client ----

@pytest.fixture(scope="module")
def generated(python_tools, tmp_path_factory):
    """(the folder with the package freshet_generated, what the generator said)"""
    folder = tmp_path_factory.mktemp("generated")
    done = subprocess.run([python_tools / "bin/openapi-python-client", "generate", "--path", FILE, "--meta", "none", "--output-path",
                           folder / "freshet_generated"], text=True, capture_output=True, timeout=300, check=False,
                          env={"PATH": f"{python_tools / 'bin'}:/usr/bin:/bin"})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr


def test_openapi_python_client_leaves_nothing_out(generated):
    folder, said = generated
    warnings = set(re.findall(r"\((Unsupported content_type [^)]*)\)", said))
    assert warnings <= UNPARSED and said.count("WARNING") == len(warnings), said
    modules = {path.stem for path in (folder / "freshet_generated/api").glob("*/*.py")} - {"__init__"}
    names = {re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name in OPERATIONS}
    assert modules == names


def test_a_client_of_openapi_python_client_talks_to_the_server(generated, python_tools, asking):
    """Every operation, its answer of the described type; refusals too."""
    printed = run_checked(python_tools / "bin/python", "-B", "-W", "error", HERE / "generated_python.py",
                          env={**asking, "PYTHONPATH": str(generated[0])})
    assert printed.splitlines()[-1] == "everything was called"


# ---- openapi-typescript ----

def compiled(folder, node_tools, name, text):
    """The program, as strictly as it can be."""
    options = {"strict": True, "target": "ES2022", "module": "NodeNext", "moduleResolution": "NodeNext", "lib": ["ES2022", "DOM"],
               "types": [], "skipLibCheck": True}
    (folder / f"{name}.ts").write_text(text)
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": [f"{name}.ts"]}))
    run_checked(node_tools / "node_modules/.bin/tsc", "-p", ".", cwd=folder)
    return folder / f"{name}.js"


@pytest.fixture(scope="module")
def generated_typescript(node_tools, tmp_path_factory):
    folder = tmp_path_factory.mktemp("typescript")
    (folder / "node_modules").symlink_to(node_tools / "node_modules")
    (folder / "package.json").write_text('{"type": "module"}')
    said = run_checked(node_tools / "node_modules/.bin/openapi-typescript", FILE, "-o", folder / "schema.ts")
    assert "warn" not in said.lower()
    return folder


def test_openapi_typescript_leaves_nothing_out(generated_typescript):
    text = (generated_typescript / "schema.ts").read_text()
    block = text[text.index("export interface operations {"):]
    assert set(re.findall(r"^    (\w+): \{$", block, re.M)) == set(OPERATIONS)


def test_a_client_of_openapi_typescript_talks_to_the_server(generated_typescript, node_tools, asking):
    """The program is compiled strictly: what the description forbids does not compile, and each such line says so."""
    program = compiled(generated_typescript, node_tools, "main", (HERE / "generated_typescript.ts").read_text())
    printed = run_checked("node", program, env={**asking, "PATH": "/usr/local/bin:/usr/bin:/bin"})
    assert printed.splitlines()[-1] == "everything was called"


@pytest.mark.whole
def test_the_compiler_finds_what_the_description_forbids(generated_typescript, node_tools):
    """The `@ts-expect-error` lines can fail: without them the program does not compile."""
    text = (HERE / "generated_typescript.ts").read_text()
    expected = text.count("// @ts-expect-error")
    with pytest.raises(AssertionError) as failure:
        compiled(generated_typescript, node_tools, "forbidden", text.replace("// @ts-expect-error", "//"))
    lines = set(re.findall(r"forbidden\.ts\((\d+),\d+\): error", str(failure.value)))
    assert expected > 5 and len(lines) == expected


# ---- the clients of clients/ ----

@pytest.mark.whole
def test_the_python_client_is_typed_strictly(python_tools):
    run_checked(python_tools / "bin/mypy", "--strict", "--python-version", "3.10", "--cache-dir", "/dev/null",
                ROOT / "clients/python/src/freshet")


def test_the_python_client_needs_nothing_but_the_standard_library():
    """Debian's own Python without its packages."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); import freshet; print(freshet.Client('http://127.0.0.1:1', 'demo').tenant)"
    assert run_checked("/usr/bin/python3", "-I", "-S", "-B", "-c", script, ROOT / "clients/python/src") == "demo\n"


@pytest.mark.whole
def test_the_python_package_can_be_built_and_installed(python_tools, tmp_path):
    source = tmp_path / "python"
    shutil.copytree(ROOT / "clients/python", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    pip = [python_tools / "bin/python", "-m", "pip", "--disable-pip-version-check"]
    run_checked(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path, source)
    wheel = next(tmp_path.glob("freshet-*.whl"))
    run_checked(*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path / "installed", wheel)
    names = {path.name for path in (tmp_path / "installed/freshet").iterdir()}
    assert {"__init__.py", "client.py", "copy.py", "py.typed", "types.py"} <= names


@pytest.mark.whole
def test_the_typescript_package_can_be_packed_and_imported(typescript_package, node_tools, tmp_path):
    """As a user does it: `npm pack` generates and compiles anew."""
    source = tmp_path / "source"
    shutil.copytree(typescript_package.parent.parent, source, symlinks=True)
    shutil.rmtree(source / "clients/typescript/dist")
    run_checked("npm", "pack", "--silent", "--pack-destination", tmp_path, cwd=source / "clients/typescript")
    run_checked("tar", "xzf", next(tmp_path.glob("*.tgz")), cwd=tmp_path)
    names = {path.relative_to(tmp_path / "package").as_posix() for path in (tmp_path / "package").rglob("*") if path.is_file()}
    assert {"package.json", "README.md", "dist/index.js", "dist/index.d.ts", "dist/schema.d.ts"} <= names
    assert not any(name.startswith(("src/", "node_modules/", "drive")) for name in names)
    script = "import('./package/dist/index.js').then((it) => console.log(typeof it.Client))"
    assert run_checked("node", "-e", script, cwd=tmp_path) == "function\n"
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/freshet-client").symlink_to(tmp_path / "package")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    compiled(tmp_path, node_tools, "use", """import { Client, type paths } from "freshet-client";
        const client = new Client({ url: "", tenant: "t" });
        export const read = (): Promise<number | undefined> => client.get<number>("D", "k");
        export type Updates = paths["/v1/tenants/{tenantId}/updates"];""")
