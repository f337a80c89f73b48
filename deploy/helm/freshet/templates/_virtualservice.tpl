{{/* Which requests go to which role, how long they may take, and what may be sent again.

A GET changes nothing: it is repeated on another pod when the first one could not be reached, or reset the connection before an answer.
A POST is repeated only when it was not sent at all (connect-failure, refused-stream), because a lost answer does not say whether the
change was made; except grants and revokes, whose Idempotency-Key is required, and whose repetition returns the first one's answer.
503 is not repeated: it carries Retry-After, and repeating it at once adds load to pods that have too much. Streams have no
time limit and are not repeated: the client knows its position. */}}
{{- define "freshet.virtualService" }}
{{- $retries := .Values.istio.retries }}
{{- $routes := list
  (dict "name" "watch" "role" "query" "method" "GET|HEAD|OPTIONS" "path" "/v1/tenants/[^/]+/dictionaries/[^/]+/watch" "stream" true)
  (dict "name" "all" "role" "query" "method" "GET|HEAD|OPTIONS" "path" "/v1/tenants/[^/]+/dictionaries/[^/]+/all" "stream" true)
  (dict "name" "read" "role" "query" "method" "GET|HEAD|OPTIONS" "path" "/v1/tenants/[^/]+/dictionaries(/.*)?")
  (dict "name" "update" "role" "command" "method" "POST" "path" "/v1/tenants/[^/]+/updates")
  (dict "name" "update-status" "role" "command" "method" "GET|HEAD|OPTIONS" "path" "/v1/tenants/[^/]+/updates/[^/]+")
  (dict "name" "item-create" "role" "intake" "method" "POST" "path" "/api/v1/items")
  (dict "name" "item" "role" "intake" "method" "GET|HEAD|OPTIONS" "path" "/api/v1/items/[^/]+")
  (dict "name" "chat-stream" "role" "chat" "method" "GET|HEAD|OPTIONS" "path" "/my/projects/[^/]+/chat/[^/]+/stream" "stream" true)
  (dict "name" "chat-message" "role" "chat" "method" "POST" "path" "/my/projects/[^/]+/chat/[^/]+/message")
  (dict "name" "chat" "role" "chat" "method" "GET|HEAD|OPTIONS" "path" "/my/projects/.*")
  (dict "name" "entitlement-change" "role" "entitlement" "method" "POST" "path" "/v1/entitlements/(grants|revokes)" "repeatable" true)
  (dict "name" "entitlements" "role" "entitlement" "method" "GET|HEAD|OPTIONS" "path" "/v1/users/[^/]+/entitlements")
  (dict "name" "notifications" "role" "notification" "method" "GET|HEAD|OPTIONS" "path" "/v1/users/[^/]+/notifications")
  (dict "name" "hydration" "role" "hydration" "method" "GET|HEAD|OPTIONS" "path" "/v1/hydration/.*")
  (dict "name" "ops" "role" "ops" "method" "GET|HEAD|OPTIONS" "path" "/v1/ops/.*")
  (dict "name" "ops-change" "role" "ops" "method" "POST" "path" "/v1/ops/.*")
  (dict "name" "console" "role" "ops" "method" "GET|HEAD|OPTIONS" "path" "/console(/.*)?")
}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: {{ include "freshet.fullname" . }}
  labels: {{- include "freshet.labels" . | nindent 4 }}
spec:
  hosts:
    {{- if .Values.istio.hosts }}
    {{- toYaml .Values.istio.hosts | nindent 4 }}
    {{- else }}
    {{- range $name, $_ := (include "freshet.deployments" . | fromYaml) }}
    - {{ include "freshet.component" (list $ $name) }}.{{ $.Release.Namespace }}.svc.cluster.local
    {{- end }}
    {{- end }}
  gateways: {{ toJson (append .Values.istio.gateways "mesh") }}
  http:
    {{- range $routes }}
    {{- $service := include "freshet.serving" (list $ .role) }}
    {{- if $service }}
    {{- $read := ne .method "POST" }}
    - name: {{ .name }}
      match:
        - method: {regex: {{ .method | quote }}}
          uri: {regex: {{ .path | quote }}}
      route:
        - destination:
            host: {{ $service }}.{{ $.Release.Namespace }}.svc.cluster.local
            port: {number: 80}
      {{- if .stream }}
      timeout: 0s
      retries: {attempts: 0}
      {{- else }}
      timeout: {{ ternary $.Values.istio.timeouts.read $.Values.istio.timeouts.write $read }}
      retries:
        attempts: {{ ternary $retries.attempts 1 $read }}
        {{- if $read }}
        perTryTimeout: {{ $retries.perTryTimeout }}
        {{- end }}
        retryOn: {{ ternary "connect-failure,refused-stream,reset" "connect-failure,refused-stream" (or $read (default false .repeatable)) }}
        retryRemoteLocalities: true
      {{- end }}
    {{- end }}
    {{- end }}
    - name: other # the description of the API, and answers for unknown paths
      route:
        - destination:
            host: {{ include "freshet.component" (list . (keys (include "freshet.deployments" . | fromYaml) | sortAlpha | last)) }}.{{ .Release.Namespace }}.svc.cluster.local
            port: {number: 80}
      timeout: {{ .Values.istio.timeouts.read }}
      retries: {attempts: 0}
{{- end }}
