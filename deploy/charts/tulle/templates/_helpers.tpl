{{- define "tulle.settings" -}}
namespace: "{{ .Release.Namespace }}"
mesh: {{ toJson .Values.mesh }}
sidecars:
  image: "{{ if .Values.images.proxy.repository }}{{ .Values.images.proxy.repository }}{{ else }}{{ .Values.images.registry }}/tulle-proxy{{ end }}{{ if .Values.images.proxy.digest }}@{{ .Values.images.proxy.digest }}{{ else }}:{{ if .Values.images.proxy.tag }}{{ .Values.images.proxy.tag }}{{ else }}{{ if .Values.images.tag }}{{ .Values.images.tag }}{{ else }}{{ .Chart.AppVersion }}{{ end }}{{ end }}{{ end }}"
{{- if (not .Values.cni.enabled) }}
  initImage: "{{ if .Values.images.init.repository }}{{ .Values.images.init.repository }}{{ else }}{{ .Values.images.registry }}/tulle-init{{ end }}{{ if .Values.images.init.digest }}@{{ .Values.images.init.digest }}{{ else }}:{{ if .Values.images.init.tag }}{{ .Values.images.init.tag }}{{ else }}{{ if .Values.images.tag }}{{ .Values.images.tag }}{{ else }}{{ .Chart.AppVersion }}{{ end }}{{ end }}{{ end }}"
{{- end }}
  imagePullPolicy: {{ toJson .Values.images.pullPolicy }}
{{- if .Values.images.pullSecrets }}
  imagePullSecrets: {{ toJson .Values.images.pullSecrets }}
{{- end }}
  controller: "tulle-controller.{{ .Release.Namespace }}.svc:15010"
  trustDomain: {{ toJson .Values.trustDomain }}
  nativeSidecar: {{ toJson .Values.sidecar.nativeSidecar }}
  holdApplication: {{ toJson .Values.sidecar.holdApplication }}
  resources:
    cpuRequest: {{ toJson .Values.sidecar.resources.requests.cpu }}
    cpuLimit: {{ toJson .Values.sidecar.resources.limits.cpu }}
    memoryRequest: {{ toJson .Values.sidecar.resources.requests.memory }}
    memoryLimit: {{ toJson .Values.sidecar.resources.limits.memory }}
  logLevel: {{ toJson .Values.sidecar.logLevel }}
  workers: {{ toJson .Values.sidecar.workers }}
  redirection: {{ toJson .Values.sidecar.redirection }}
  metrics: {{ toJson .Values.sidecar.metrics }}
{{- if .Values.issuer.certManager.name }}
issuer:
  certManager:
    name: {{ toJson .Values.issuer.certManager.name }}
    kind: {{ toJson .Values.issuer.certManager.kind }}
    group: {{ toJson .Values.issuer.certManager.group }}
{{- if .Values.issuer.ca }}
    roots: "/etc/tulle-issuer/ca.crt"
{{- end }}
{{- else }}
{{- if .Values.issuer.vault.address }}
issuer:
  vault:
    address: {{ toJson .Values.issuer.vault.address }}
    mount: {{ toJson .Values.issuer.vault.sign.mount }}
    role: {{ toJson .Values.issuer.vault.sign.role }}
    ca: "/etc/tulle-issuer/ca.crt"
    auth:
      kubernetes:
        mount: {{ toJson .Values.issuer.vault.auth.mount }}
        role: {{ toJson .Values.issuer.vault.auth.role }}
        token: "/var/run/secrets/kubernetes.io/serviceaccount/token"
{{- end }}
{{- end }}
console:
  enabled: {{ toJson .Values.console.enabled }}
  actions: {{ toJson .Values.console.actions }}
{{- if .Values.monitoring.smiMetrics }}
smiMetrics: true
{{- end }}
{{- if .Values.webhook.clientCA }}
webhookClientCA: {{ toJson .Values.webhook.clientCA }}
{{- end }}
{{- end }}
