{{- define "keelway.name" -}}
{{ .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-manager" .Release.Name) (hasSuffix "manager" .Release.Name)) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "keelway.selector" -}}
app.kubernetes.io/name: keelway-manager
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "keelway.labels" -}}
{{ include "keelway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: keelway
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "keelway.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "keelway.name" .) }}
{{- end }}

{{- define "keelway.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default (printf "v%s" $.Chart.AppVersion) }}{{ end }}
{{- end -}}
{{- end }}
