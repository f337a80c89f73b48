{{/* freshet.yaml: what the chart knows, and `config` laid over it. */}}
{{- define "freshet.config" -}}
{{- $own := include "freshet.ownConfig" . | fromYaml -}}
{{- if hasKey $own "Error" -}}{{- fail (printf "freshet.yaml: %s" $own.Error) -}}{{- end -}}
{{- mustMergeOverwrite $own (deepCopy .Values.config) | toYaml -}}
{{- end }}

{{- define "freshet.ownConfig" -}}
http:
  listen: ["0.0.0.0:{{ .Values.ports.http }}", "0.0.0.0:{{ .Values.ports.admin }}"]
  loops: ${FRESHET_LOOPS:0}
  {{- if .Values.lifecycle.drainDelaySeconds }}
  drainDelay: {{ .Values.lifecycle.drainDelaySeconds }}s
  {{- end }}
  stopTimeout: {{ .Values.lifecycle.stopTimeoutSeconds }}s
  {{- if .Values.tls.existingSecret }}
  {{- if .Values.istio.enabled }}{{ fail "tls.existingSecret and istio.enabled: one of them encrypts, not both" }}{{ end }}
  tls:
    certFile: /etc/freshet/tls/tls.crt
    keyFile: /etc/freshet/tls/tls.key
    {{- if .Values.tls.clientCa }}
    clientCaFile: /etc/freshet/tls/ca.crt
    {{- end }}
  {{- end }}
limits:
  memory: ${FRESHET_MEMORY:0}
auth:
  {{- with .Values.auth.issuer }}
  issuer: {{ . | quote }}
  {{- end }}
  {{- with .Values.auth.audiences }}
  audiences: {{ toJson . }}
  {{- end }}
  {{- with .Values.auth.jwksUrl }}
  jwksUrl: {{ . | quote }}
  {{- end }}
  {{- if .Values.auth.jwks }}
  jwksFile: /etc/freshet/config/jwks.json
  {{- end }}
bus:
  commands: {{ ternary "kafka" "postgres" .Values.kafka.enabled }}
  invalidations: {{ ternary "redis" "postgres" .Values.redis.enabled }}
  events: {{ ternary "nats" "postgres" .Values.nats.enabled }}
  {{- if .Values.migration.enabled }}
  migrate: never # the Job has done it
  {{- end }}
postgres: {{- include "freshet.postgresConfig" . | nindent 2 }}
refdata:
  postgres: {{- include "freshet.postgresConfig" . | nindent 4 }}
    schema: public
  cache:
    memory: ${FRESHET_CACHE_MEMORY:0}
{{- if .Values.kafka.enabled }}
kafka:
  brokers: {{ toJson .Values.kafka.brokers }}
  tls: {{- include "freshet.tlsConfig" (list . .Values.kafka.tls) | nindent 4 }}
  {{- if .Values.kafka.username }}
  sasl:
    mechanism: {{ .Values.kafka.mechanism }}
    username: {{ .Values.kafka.username | quote }}
    {{- include "freshet.password" (list . "kafka") | nindent 4 }}
  {{- end }}
{{- end }}
{{- if .Values.redis.enabled }}
redis:
  mode: {{ .Values.redis.mode }}
  nodes: {{ toJson .Values.redis.nodes }}
  tls: {{- include "freshet.tlsConfig" (list . .Values.redis.tls) | nindent 4 }}
  {{- with .Values.redis.username }}
  username: {{ . | quote }}
  {{- end }}
  {{- include "freshet.password" (list . "redis") | nindent 2 }}
{{- end }}
{{- if .Values.nats.enabled }}
nats:
  servers: {{ toJson .Values.nats.servers }}
  replicas: {{ .Values.nats.replicas }}
  tls: {{- include "freshet.tlsConfig" (list . .Values.nats.tls) | nindent 4 }}
  {{- with .Values.nats.username }}
  username: {{ . | quote }}
  {{- end }}
  {{- include "freshet.password" (list . "nats") | nindent 2 }}
entitlement:
  nats:
    subject: entitlement.events
    stream: ENTITLEMENT
{{- end }}
{{- end }}

{{- define "freshet.postgresConfig" -}}
jdbcUrl: {{ required "postgres.url is required: jdbc:postgresql://HOST:5432/DATABASE" .Values.postgres.url | quote }}
{{- with .Values.postgres.username }}
username: {{ . | quote }}
{{- end }}
{{- with include "freshet.password" (list . "postgres") }}
{{ . }}
{{- end }}
pool:
  maxSize: {{ .Values.postgres.poolSize }}
{{- end }}

{{- define "freshet.tlsConfig" -}}
{{- $root := index . 0 -}}
enabled: {{ index . 1 }}
{{- if and (index . 1) $root.Values.ca.existingConfigMap }}
caFile: /etc/freshet/ca/ca.crt
{{- end }}
{{- end }}

{{/* Volumes of a pod, and where they are mounted. Takes a list: root, the name of the ConfigMap, whether it is the Job. */}}
{{- define "freshet.volumes" -}}
{{- $root := index . 0 -}}
- name: config
  configMap:
    name: {{ index . 1 }}
{{- if eq $root.Values.secrets.mode "file" }}
{{- range $block, $password := (include "freshet.passwords" $root | fromYaml) }}
- name: {{ $block }}-password
  secret:
    secretName: {{ ternary (index $ 2) $password.secret (default false $password.own) }}
    defaultMode: 0440
    items:
      - key: {{ $password.key }}
        path: password
{{- end }}
{{- end }}
{{- with $root.Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with $root.Values.ca.existingConfigMap }}
- name: ca
  configMap:
    name: {{ . }}
{{- end }}
{{- end }}

{{- define "freshet.volumeMounts" -}}
- name: config
  mountPath: /etc/freshet/config # the whole folder: a file mounted by subPath is never updated
  readOnly: true
{{- if eq .Values.secrets.mode "file" }}
{{- range $block, $_ := (include "freshet.passwords" . | fromYaml) }}
- name: {{ $block }}-password
  mountPath: /etc/freshet/secrets/{{ $block }}
  readOnly: true
{{- end }}
{{- end }}
{{- if .Values.tls.existingSecret }}
- name: tls
  mountPath: /etc/freshet/tls
  readOnly: true
{{- end }}
{{- with .Values.ca.existingConfigMap }}
- name: ca
  mountPath: /etc/freshet/ca
  readOnly: true
{{- end }}
{{- end }}

{{/* Takes a list: root, the name of the chart's own Secret. */}}
{{- define "freshet.passwordEnv" -}}
{{- $root := index . 0 -}}
{{- if eq $root.Values.secrets.mode "env" -}}
{{- range $block, $password := (include "freshet.passwords" $root | fromYaml) }}
- name: FRESHET_{{ upper $block }}_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ ternary (index $ 1) $password.secret (default false $password.own) }}
      key: {{ $password.key }}
{{- end }}
{{- end }}
{{- end }}
