{{- define "netsilo.selector" -}}
app.kubernetes.io/name: netsilo
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "netsilo.labels" -}}
{{ include "netsilo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "netsilo.config" -}}
{{- if .Values.metrics.enabled }}
metrics = "0.0.0.0:{{ .Values.metrics.port }}"
{{- end }}
{{ .Values.config }}
{{- end }}
