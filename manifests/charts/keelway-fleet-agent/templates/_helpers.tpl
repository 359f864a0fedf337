{{- define "keelway-fleet-agent.selector" -}}
app.kubernetes.io/name: keelway-fleet-agent
{{- end }}

{{- define "keelway-fleet-agent.podLabels" -}}
{{ include "keelway-fleet-agent.selector" . }}
app.kubernetes.io/part-of: keelway
{{- end }}

{{- define "keelway-fleet-agent.labels" -}}
{{ include "keelway-fleet-agent.podLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "keelway-fleet-agent.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default (printf "v%s" $.Chart.AppVersion) }}{{ end }}
{{- end -}}
{{- end }}

{{- define "keelway-fleet-agent.tokenSecret" -}}
{{- if and .Values.token .Values.tokenSecret }}
{{- fail "token and tokenSecret are both set: set one of them" }}
{{- end }}
{{- if not (or .Values.token .Values.tokenSecret) }}
{{- fail "there is no token: create one with `keelway fleet token create --cluster-name NAME > token`, and add --set-file token=token; or name an existing Secret with --set tokenSecret=NAME" }}
{{- end }}
{{- .Values.tokenSecret | default "keelway-fleet-token" }}
{{- end }}
