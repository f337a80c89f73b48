{{/* 44: a Service's name has at most 63 characters, a role's at most 12, and the longest name is FULLNAME-ROLE-admin. */}}
{{- define "freshet.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 44 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 44 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "freshet.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "freshet.labels" -}}
{{ include "freshet.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "freshet.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "freshet.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "freshet.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end }}

{{/* The Deployments of this release as YAML: name -> values, those of `defaults` included. */}}
{{- define "freshet.deployments" -}}
{{- $all := dict -}}
{{- if eq .Values.mode "all" -}}
{{- $_ := set $all "all" (mustMergeOverwrite (deepCopy .Values.defaults) (deepCopy .Values.all)) -}}
{{- else -}}
{{- range $name, $own := .Values.roles -}}
{{- $role := mustMergeOverwrite (deepCopy $.Values.defaults) (deepCopy (default dict $own)) -}}
{{- if $role.enabled -}}
{{- $_ := set $all $name $role -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end }}

{{/* FULLNAME-ROLE; the Deployment of mode `all` has no suffix. Takes a list: root, role. */}}
{{- define "freshet.component" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- if eq $name "all" -}}{{ include "freshet.fullname" $root }}{{- else -}}{{ include "freshet.fullname" $root }}-{{ $name }}{{- end -}}
{{- end }}

{{/* The name of the Deployment whose pods run a role; empty: none does. Takes a list: root, role. */}}
{{- define "freshet.serving" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- $found := "" -}}
{{- range $name, $values := (include "freshet.deployments" $root | fromYaml) -}}
{{- if or (eq $name "all") (has $role (default (list $name) $values.runs)) -}}
{{- $found = include "freshet.component" (list $root $name) -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end }}

{{/* A size as the program reads it. Helm makes floating-point numbers of whole ones, and would write 2.68435456e+08. */}}
{{- define "freshet.size" -}}
{{- if kindIs "string" . -}}{{ . }}{{- else -}}{{ int64 . }}{{- end -}}
{{- end }}

{{/* Processors, rounded up, of "500m", "4" or 2.5. */}}
{{- define "freshet.processors" -}}
{{- $cpu := toString . -}}
{{- if hasSuffix "m" $cpu -}}
{{- max 1 (ceil (divf (trimSuffix "m" $cpu | float64) 1000.0)) | int -}}
{{- else -}}
{{- max 1 (ceil (float64 $cpu)) | int -}}
{{- end -}}
{{- end }}

{{/* Passwords: block -> the Secret and its key, for those blocks that have a password. */}}
{{- define "freshet.passwords" -}}
{{- $all := dict -}}
{{- range $block := list "postgres" "kafka" "redis" "nats" -}}
{{- $values := index $.Values $block -}}
{{- $used := or (eq $block "postgres") $values.enabled -}}
{{- if and $used $values.existingSecret -}}
{{- $_ := set $all $block (dict "secret" $values.existingSecret "key" $values.secretKey) -}}
{{- else if and $used $values.password -}}
{{- $_ := set $all $block (dict "secret" (include "freshet.fullname" $) "key" $block "own" true) -}}
{{- end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end }}

{{/* passwordFile or passwordFromEnv of a block. Takes a list: root, block. */}}
{{- define "freshet.password" -}}
{{- $root := index . 0 -}}
{{- $block := index . 1 -}}
{{- $passwords := include "freshet.passwords" $root | fromYaml -}}
{{- if hasKey $passwords $block -}}
{{- if eq $root.Values.secrets.mode "file" -}}
passwordFile: /etc/freshet/secrets/{{ $block }}/password
{{- else -}}
passwordFromEnv: FRESHET_{{ upper $block }}_PASSWORD
{{- end -}}
{{- end -}}
{{- end }}
