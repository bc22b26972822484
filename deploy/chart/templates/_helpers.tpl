{{- define "aliquot.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "aliquot.labels" -}}
app.kubernetes.io/name: aliquot
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* The labels by which pods are chosen; call with (list . "component"). They never change. */ -}}
{{- define "aliquot.selector" -}}
app.kubernetes.io/name: aliquot
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* The fixed sizes as the programs take them: half=50/8Gi,... */ -}}
{{- define "aliquot.sizes" -}}
{{- range $i, $size := .Values.claims.sizes }}{{ if $i }},{{ end }}{{ $size.name }}={{ $size.compute }}/{{ $size.memory }}{{ end }}
{{- end }}

{{- define "aliquot.url" -}}
http{{ if .Values.scheduler.tls.secretName }}s{{ end }}://aliquot-extender.{{ .Release.Namespace }}.svc:{{ .Values.scheduler.port }}
{{- end }}

{{- define "aliquot.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
