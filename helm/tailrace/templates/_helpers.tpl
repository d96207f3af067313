{{/* By which the operator's pod is found. */}}
{{- define "tailrace.selectorLabels" -}}
app.kubernetes.io/name: tailrace
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Of all that the release has. */}}
{{- define "tailrace.labels" -}}
{{ include "tailrace.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Cluster-wide names: releases in two namespaces may have one name. */}}
{{- define "tailrace.clusterName" -}}
{{ .Release.Namespace }}-{{ .Release.Name }}
{{- end }}

{{- define "tailrace.image" -}}
{{ .image.repository }}:{{ .image.tag | default .appVersion }}{{ with .image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "tailrace.serviceAccount" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}
