"""The chart as the tests see it: its values files, and what Helm makes of them."""
import copy
import functools
import os
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "deploy/helm/freshet"
GOLDEN = Path(__file__).resolve().parent / "golden"
KUBERNETES = "1.34.0"

# name → the values files that are laid over each other
VALUES = {
    "development": ["values-development.yaml"],
    "production": ["values-production.yaml"],
    "2m-reads": ["values-production.yaml", "values-2m-reads.yaml"],
}


def merged(base, changes):
    """As Helm lays values over values."""
    result = copy.deepcopy(base)
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(result.get(name), dict):
            result[name] = merged(result[name], value)
        else:
            result[name] = copy.deepcopy(value)
    return result


def read_yaml(name):
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def values_of(name):
    """All values of an example, the chart's defaults included."""
    return functools.reduce(merged, map(read_yaml, VALUES[name]), read_yaml("values.yaml"))


def role_values(values, role):
    return merged(values["defaults"], values["roles"][role] or {})


class Chart:
    def helm(self, *args):
        program = os.environ.get("FRESHET_HELM")
        assert program, "Helm could not be fetched from the Go module proxy: see the lines before the tests, or set FRESHET_HELM"
        return subprocess.run([program, *map(str, args)], text=True, capture_output=True, timeout=120, check=False)

    def template(self, files, *more):
        """`helm template`: the finished process."""
        options = [word for name in files for word in ("-f", FOLDER / name)]
        return self.helm("template", "freshet", FOLDER, "--kube-version", KUBERNETES, "--namespace", "shop", *options, *more)

    @functools.lru_cache(maxsize=None)
    def documents(self, name, *more):
        """The resources that an example renders, with further options of Helm."""
        done = self.template(VALUES[name], *more)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    def of_kind(self, name, kind, *more):
        return {each["metadata"]["name"]: each for each in self.documents(name, *more) if each["kind"] == kind}

    def pod_specs(self, name, *more):
        """Every pod template, of Deployments and of the Job."""
        return {f"{each['kind']} {each['metadata']['name']}": each["spec"]["template"]
                for each in self.documents(name, *more) if each["kind"] in ("Deployment", "Job")}
