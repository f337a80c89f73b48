"""P2: the chart as Helm renders it: accepted by the published schemas, safe, and consistent with itself and with the program."""
import re

import pytest
import yaml

from chart import FOLDER, GOLDEN, VALUES, values_of

pytestmark = pytest.mark.whole

# Further ways to render an example: everything that an option turns on has to be valid too.
OWNER = ("--set", "postgres.migration.username=freshet_owner,postgres.migration.existingSecret=owner,postgres.migration.secretKey=word")
VARIANTS = {
    "development": [(), ("--set", "migration.enabled=true"), ("--set", "restartOnConfigChange=true")],
    "production": [(), ("--set", "istio.enabled=false", "--set", "tls.existingSecret=t", "--set", "tls.clientCa=true"), ("--set", "lifecycle.drainDelaySeconds=5", "--set", "lifecycle.preStopSeconds=0"), ("--set", "secrets.mode=env"), OWNER, ("--set", "mode=all"), ("--set", "roles.adapter.enabled=true"),
                   ("--set", "istio.enabled=false"), ("--set", "istio.mode=ambient"), ("--set", "prometheusRule.enabled=true"),
                   ("--set", "istio.principals={cluster.local/ns/a/sa/b}", "--set", "istio.certificateClients={cluster.local/ns/c/sa/d}"),
                   ("--set", "roles.query.runs={query,command}", "--set", "roles.command.enabled=false")],
    "2m-reads": [()],
}
ALL = [(name, variant) for name, variants in VARIANTS.items() for variant in variants]
RULES = ("--set-json", 'prometheusRule.groups=[{"name":"g","rules":[{"alert":"A","expr":"up == 0","for":"1m"}]}]')


def with_rules(variant):
    """The rules are another part of deploy/; where they are not there, the variant brings one of its own."""
    has_file = (FOLDER / "files/freshet.rules.yml").exists()
    return variant + RULES if "prometheusRule.enabled=true" in variant and not has_file else variant


@pytest.mark.parametrize("name", VALUES)
def test_helm_lint_finds_nothing(chart, name):
    done = chart.helm("lint", "--strict", FOLDER, *(word for each in VALUES[name] for word in ("-f", FOLDER / each)))
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout and "[ERROR]" not in done.stdout, done.stdout


@pytest.mark.parametrize("name, variant", ALL)
def test_every_resource_conforms_to_its_published_schema(chart, schemas, name, variant):
    documents = chart.documents(name, *with_rules(variant))
    wrong = [f"{each['kind']} {each['metadata']['name']}: {mistake}" for each in documents for mistake in schemas.mistakes(each)]
    assert not wrong, "\n".join(wrong)
    names = [(each["kind"], each["metadata"]["name"]) for each in documents]
    assert len(names) == len(set(names)), "two resources of one name"
    assert all(len(each["metadata"]["name"]) <= 63 for each in documents)


def test_the_schemas_find_mistakes(schemas):
    """That they are read strictly: an unknown field, a wrong type, an unknown kind, in Kubernetes' own and in custom resources."""
    good = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}}
    rule = {"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule", "metadata": {"name": "a"}, "spec": {"host": "h"}}
    assert schemas.mistakes(good) == [] and schemas.mistakes(rule) == []
    assert schemas.mistakes({**good, "spec": {"ports": [{"port": 80, "porrt": 1}]}})
    assert schemas.mistakes({**good, "spec": {"ports": [{"port": "eighty"}]}})
    assert schemas.mistakes({**good, "kind": "Servise"})
    assert schemas.mistakes({**rule, "spec": {"host": "h", "trafficPolicy": {"outlierDetection": {"intervall": "5s"}}}})
    assert schemas.mistakes({**rule, "spec": {"host": "h", "trafficPolicy": {"connectionPool": {"tcp": {"maxConnections": "1"}}}}})
    quantity = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [
        {"name": "c", "resources": {"requests": {"memory": "512MiB"}}}]}}
    assert schemas.mistakes(quantity)


@pytest.mark.parametrize("name", VALUES)
def test_the_configuration_is_the_one_that_the_program_has_checked(chart, name):
    """golden/NAME.freshet.yaml; test_values.py gives it to the program."""
    rendered = chart.of_kind(name, "ConfigMap")["freshet"]["data"]["freshet.yaml"]
    assert rendered == (GOLDEN / f"{name}.freshet.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name, variant", ALL)
def test_every_pod_is_restricted(chart, name, variant):
    """The Pod Security Standard `restricted`, and a file system that cannot be written."""
    for where, template in chart.pod_specs(name, *with_rules(variant)).items():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, where
        assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 0, where
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True, where
            assert context["capabilities"] == {"drop": ["ALL"]}, where
            assert set(container["resources"]["requests"]) == {"cpu", "memory"} and "memory" in container["resources"]["limits"], where
            assert all("subPath" not in mount for mount in container["volumeMounts"]), f"{where}: it would never be updated"


@pytest.mark.parametrize("name", VALUES)
def test_probes_ask_for_what_the_program_answers(chart, name, root):
    """C8. Liveness must not depend on PostgreSQL; readiness must fall with the roles."""
    routes = (root / "docs/HTTP.md").read_text(encoding="utf-8")
    for where, each in chart.of_kind(name, "Deployment").items():
        container, = each["spec"]["template"]["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        wanted = {"startupProbe": "/actuator/health/liveness", "livenessProbe": "/actuator/health/liveness",
                  "readinessProbe": "/actuator/health/readiness"}
        for probe, path in wanted.items():
            assert container[probe]["httpGet"] == {"path": path, "port": "admin"}, where
            assert f"`GET {path}`" in routes
        assert ports == {"http": 8080, "admin": 9090}


@pytest.mark.parametrize("name", VALUES)
def test_a_pod_has_the_time_to_stop(chart, name):
    """C7: terminationGracePeriodSeconds is more than preStop, http.drainDelay and http.stopTimeout together; where there are several
    pods, one of the first two leaves the proxies time to notice."""
    config = yaml.safe_load(chart.of_kind(name, "ConfigMap")["freshet"]["data"]["freshet.yaml"])["http"]
    needed = sum(int(config.get(each, "0s").rstrip("s")) for each in ("drainDelay", "stopTimeout"))
    for each in chart.of_kind(name, "Deployment").values():
        spec = each["spec"]["template"]["spec"]
        sleep = spec["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert spec["terminationGracePeriodSeconds"] >= sleep + needed + 5
        assert name == "development" or sleep + int(config.get("drainDelay", "0s").rstrip("s")) >= 5


@pytest.mark.parametrize("name", VALUES)
def test_selectors_find_their_pods(chart, name):
    """Services, budgets, scalers and spread rules belong to exactly one Deployment each."""
    deployments = chart.of_kind(name, "Deployment")
    labels = {where: each["spec"]["template"]["metadata"]["labels"] for where, each in deployments.items()}

    def found(selector):
        return [where for where, has in labels.items() if selector.items() <= has.items()]

    for where, each in deployments.items():
        assert found(each["spec"]["selector"]["matchLabels"]) == [where]
        for rule in each["spec"]["template"]["spec"].get("topologySpreadConstraints", []):
            assert found(rule["labelSelector"]["matchLabels"]) == [where]
    services = chart.of_kind(name, "Service")
    assert {where for service in services.values() for where in found(service["spec"]["selector"])} == set(deployments)
    assert all(len(found(service["spec"]["selector"])) == 1 for service in services.values())
    for where, each in chart.of_kind(name, "PodDisruptionBudget").items():
        assert found(each["spec"]["selector"]["matchLabels"]) == [where]
    for where, each in chart.of_kind(name, "HorizontalPodAutoscaler").items():
        assert each["spec"]["scaleTargetRef"]["name"] in deployments
        assert "replicas" not in deployments[where]["spec"], "Helm and the autoscaler would fight"


def test_each_role_runs_alone_from_one_image(chart):
    """C1, P2."""
    roles = [role for role, values in values_of("production")["roles"].items() if (values or {}).get("enabled", True)]
    deployments = chart.of_kind("production", "Deployment")
    assert set(deployments) == {f"freshet-{role}" for role in roles}
    containers = {where: each["spec"]["template"]["spec"]["containers"][0] for where, each in deployments.items()}
    assert len({container["image"] for container in containers.values()}) == 1
    for role in roles:
        assert f"--roles={role}" in containers[f"freshet-{role}"]["args"]
    alone, = chart.of_kind("development", "Deployment").values()
    assert not [word for word in alone["spec"]["template"]["spec"]["containers"][0]["args"] if "--roles" in word]


def test_a_change_of_the_configuration_restarts_nothing_unless_asked(chart):
    """R15: the program reloads its file."""
    def templates(*more):
        return {where: each["spec"]["template"] for where, each in chart.of_kind("production", "Deployment", *more).items()}

    change = ("--set", "config.log.level=debug")
    assert templates() == templates(*change)
    asked = ("--set", "restartOnConfigChange=true")
    assert all(one != templates(*asked, *change)[where] for where, one in templates(*asked).items())


@pytest.mark.parametrize("mode, word", [("file", "passwordFile"), ("env", "passwordFromEnv")])
def test_passwords_reach_the_program_and_no_configmap(chart, mode, word):
    """P2: each login of freshet.yaml names a file that is mounted, or a variable that is set, from a Secret."""
    more = ("--set", f"secrets.mode={mode}")
    text = chart.of_kind("production", "ConfigMap", *more)["freshet"]["data"]["freshet.yaml"]
    named = set(re.findall(rf"{word}: (\S+)", text))
    assert len(named) == 4 and set(re.findall(r"(password\w*):", text)) == {word}
    for where, template in chart.pod_specs("production", *more).items():
        container, = template["spec"]["containers"]
        secrets = {volume["name"]: volume["secret"] for volume in template["spec"]["volumes"] if "secret" in volume}
        if mode == "file":
            mounted = {f"{mount['mountPath']}/{secrets[mount['name']]['items'][0]['path']}"
                       for mount in container["volumeMounts"] if mount["name"] in secrets}
        else:
            mounted = {each["name"] for each in container.get("env", []) if "secretKeyRef" in each.get("valueFrom", {})}
            assert not secrets
        assert mounted == named, where


def test_the_migration_runs_before_the_pods(chart):
    """C10: hooks in order, with everything that the Job mounts made by hooks before it, and no sidecar that keeps it running."""
    for more in ((), ("--set", "postgres.existingSecret=", "--set", "postgres.password=x")):
        job, = chart.of_kind("production", "Job", *more).values()
        hooks = {(each["kind"], each["metadata"]["name"]): each["metadata"]["annotations"]
                 for each in chart.documents("production", *more) if "helm.sh/hook" in each["metadata"].get("annotations", {})}
        weight = int(hooks["Job", "freshet-migrate"]["helm.sh/hook-weight"])
        assert all(each["helm.sh/hook"] == "pre-install,pre-upgrade" for each in hooks.values())
        assert all(int(each["helm.sh/hook-weight"]) < weight for key, each in hooks.items() if key[0] != "Job")
        spec = job["spec"]["template"]["spec"]
        needed = {("ConfigMap", volume["configMap"]["name"]) for volume in spec["volumes"] if "configMap" in volume}
        needed |= {("Secret", volume["secret"]["secretName"]) for volume in spec["volumes"] if "secret" in volume}
        made = {(each["kind"], each["metadata"]["name"]) for each in chart.documents("production", *more)}
        assert needed & made <= set(hooks), "a hook cannot use what is installed after it"
        assert spec["containers"][0]["args"][0] == "migrate"
        assert job["spec"]["template"]["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        labels = job["spec"]["template"]["metadata"]["labels"]
        assert not [where for where, service in chart.of_kind("production", "Service", *more).items()
                    if service["spec"]["selector"].items() <= labels.items()], "a Service would send requests to the Job"


@pytest.mark.parametrize("mode", ["file", "env"])
def test_the_migration_may_have_a_login_of_its_own(chart, mode):
    """C10: the pods never see the owner's password, nor the Job theirs."""
    more = (*OWNER, "--set", f"secrets.mode={mode}")
    configs = {name: yaml.safe_load(each["data"]["freshet.yaml"]) for name, each in chart.of_kind("production", "ConfigMap", *more).items()}
    owner = configs["freshet-migrate"]
    for postgres in (owner["postgres"], owner["refdata"]["postgres"]):
        assert postgres.pop("username") == "freshet_owner"
        postgres["username"] = "freshet"
    assert owner == configs["freshet"]
    for where, template in chart.pod_specs("production", *more).items():
        container, = template["spec"]["containers"]
        secrets = {each["secret"]["secretName"]: each["secret"]["items"][0]["key"] for each in template["spec"]["volumes"] if "secret" in each}
        secrets |= {each["valueFrom"]["secretKeyRef"]["name"]: each["valueFrom"]["secretKeyRef"]["key"]
                    for each in container.get("env", []) if "secretKeyRef" in each.get("valueFrom", {})}
        logins = {name: key for name, key in secrets.items() if name in ("owner", "freshet-postgres")}
        assert logins == ({"owner": "word"} if where.startswith("Job ") else {"freshet-postgres": "password"}), where


def test_the_job_can_be_applied_before_the_release(chart):
    """As README.md does before it grants."""
    done = chart.template(VALUES["production"], *OWNER, "-s", "templates/migration.yaml")
    made = [(each["kind"], each["metadata"]["name"]) for each in yaml.safe_load_all(done.stdout)]
    assert made == [("ConfigMap", "freshet-migrate"), ("Job", "freshet-migrate")], done.stderr


def test_tls_is_used_by_whoever_asks_the_pods(chart):
    more = ("--set", "istio.enabled=false", "--set", "tls.existingSecret=freshet-tls")
    config = yaml.safe_load(chart.of_kind("production", "ConfigMap", *more)["freshet"]["data"]["freshet.yaml"])["http"]["tls"]
    for each in chart.of_kind("production", "Deployment", *more).values():
        spec = each["spec"]["template"]["spec"]
        container, = spec["containers"]
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert config == {"certFile": mounted["tls"] + "/tls.crt", "keyFile": mounted["tls"] + "/tls.key"}
        assert [volume["secret"]["secretName"] for volume in spec["volumes"] if volume["name"] == "tls"] == ["freshet-tls"]
        assert all(container[probe]["httpGet"]["scheme"] == "HTTPS" for probe in ("startupProbe", "livenessProbe", "readinessProbe"))
    monitor, = chart.of_kind("production", "ServiceMonitor", *more).values()
    assert monitor["spec"]["endpoints"][0]["scheme"] == "https"
    refused = chart.template(VALUES["production"], "--set", "tls.existingSecret=freshet-tls")
    assert refused.returncode != 0 and "not both" in refused.stderr


def test_the_network_policy_opens_the_ports_that_are_configured(chart):
    policy, = chart.of_kind("production", "NetworkPolicy").values()
    opened = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert opened == {53, 5432, 9093, 6379, 4222, 443, 15012}
    assert [{port["port"] for port in rule["ports"]} for rule in policy["spec"]["ingress"]] == [{8080}, {9090}]
    assert all(rule["from"] for rule in policy["spec"]["ingress"])


@pytest.mark.parametrize("mistake", [("--set", "replica=3"), ("--set", "mode=both"), ("--set", "postgres.url="),
                                     ("--set", "auth.issuer="), ("--set", "redis.nodes={redis}")])
def test_helm_refuses_a_mistake_in_the_values(chart, mistake):
    done = chart.template(VALUES["production"], *mistake)
    assert done.returncode != 0 and done.stderr


def test_numbers_of_a_values_file_stay_whole(chart, tmp_path):
    """Helm reads the whole numbers of a file as floating point: 268435456 must not become 2.68435456e+08."""
    values = tmp_path / "numbers.yaml"
    values.write_text("defaults: {memory: 268435456, cacheMemory: 1073741824}\n"
                      "istio: {connectionPool: {maxConnections: 1000000, maxRequests: 2000000, maxPendingRequests: 3000000}}\n")
    env = {each["name"]: each["value"] for each in chart.of_kind("production", "Deployment", "-f", values)["freshet-apply"]
           ["spec"]["template"]["spec"]["containers"][0]["env"] if "value" in each}
    assert (env["FRESHET_MEMORY"], env["FRESHET_CACHE_MEMORY"]) == ("268435456", "1073741824")
    pool = next(iter(chart.of_kind("production", "DestinationRule", "-f", values).values()))["spec"]["trafficPolicy"]["connectionPool"]
    assert repr([pool["tcp"]["maxConnections"], pool["http"]["http2MaxRequests"], pool["http"]["http1MaxPendingRequests"]]) == \
        "[1000000, 2000000, 3000000]"


def test_names_fit_whatever_the_release_is_called(chart):
    documents = chart.documents("production", "--set", "fullnameOverride=" + "x" * 53, "--set", "roles.twelve-chars.runs={query}")
    assert max(len(each["metadata"]["name"]) for each in documents) <= 63


def test_the_network_policy_opens_the_port_of_every_host_of_postgres(chart):
    policy, = chart.of_kind("production", "NetworkPolicy", "--set", r"postgres.url=jdbc:postgresql://a:5433\,b\,[::1]:5434/x").values()
    opened = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert {5432, 5433, 5434} <= opened


def test_a_release_without_any_role_is_refused(chart):
    roles = [word for role in values_of("production")["roles"] for word in ("--set", f"roles.{role}.enabled=false")]
    refused = chart.template(VALUES["production"], *roles)
    assert refused.returncode != 0 and "none is enabled" in refused.stderr
