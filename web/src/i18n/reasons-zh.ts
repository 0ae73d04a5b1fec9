/** Causes and cures of the reason codes in Chinese; a test asks for each code of `docs/reasons.md`. */

export const chinese: Record<string, { cause: string; fix: string }> = {
  denied: {
    cause: "有规则拒绝了该调用方、端口、方法或路径，或者没有规则允许它；详情中有规则名",
    fix: "`tulle why FROM TO PATH`；新增或放宽 TrafficTarget 或 AuthorizationPolicy",
  },
  plaintext_refused: {
    cause: "网格（Mesh）或 strict 命名空间要求该端口使用双向 TLS，而外部发来了明文",
    fix: "通过边车或网关调用；迁移期间可设 `Mesh spec.mtls.mode: permissive` 和 `permissiveMode: true`，且命名空间不为 strict",
  },
  no_service: {
    cause: "目标不属于网格中的任何服务",
    fix: "为它声明 Workload 或 Egress，或设 `Mesh spec.allowEgress: true`；strict 命名空间必须有 Egress",
  },
  egress_denied: {
    cause: "目标在网格之外，没有 Egress 允许该调用方以此主机、端口或请求访问",
    fix: "`tulle get Egress`；新增或放宽一个",
  },
  no_route: { cause: "没有 HTTPRoute 匹配主机、路径、方法和请求头", fix: "`tulle get HTTPRoute`" },
  no_port: {
    cause: "服务没有这个端口；或网关在该端口没有生效的监听器，因为缺少其 Secret",
    fix: "把端口加入 Workload 的 `ports`；`tulle check` 会指出缺少的 Secret",
  },
  no_endpoint: {
    cause: "服务没有就绪的端点；或 `internalTrafficPolicy` 为 `Local` 而本节点上没有",
    fix: "`tulle status`、`tulle logs WORKLOAD`",
  },
  connect_failed: {
    cause: "TCP 连接被拒绝或失败",
    fix: "应用是否在声明的端口上监听？较小的请求（一次就全部到达）若还有别的端点，会先发往另一个端点",
  },
  connect_timeout: { cause: "连接和握手的时间超过了 `timeouts.connect`", fix: "检查网络，或主机是否过载" },
  tls_failed: {
    cause: "握手失败：身份不对、证书过期或属于其他信任域",
    fix: "`/errors` 的详情说明是哪一种；检查时钟",
  },
  upstream_reset: { cause: "上游在响应完整之前断开了连接", fix: "查看应用日志" },
  bad_response: { cause: "响应违反 HTTP 的分帧规则", fix: "修正应用" },
  request_timeout: {
    cause: "在 `timeouts.request` 内没有收到响应头",
    fix: "应用较慢，或在 HTTPRoute 上设更长的超时",
  },
  no_backend: {
    cause: "匹配的规则没有带权重的后端，也没有能应答的过滤器，或其后端的服务或端口不存在；详情中有名称",
    fix: "给规则一个带权重的后端；后端是否存在，若在别的命名空间，是否有 ReferenceGrant 允许？",
  },
  fault_injected: { cause: "路由的 `fault` 过滤器有意中止了请求", fix: "移除该过滤器" },
  redirected: { cause: "路由的 `redirect` 过滤器作了应答；不是失败", fix: "" },
  responded: { cause: "路由的 `respond` 过滤器作了应答；不是失败", fix: "" },
  cors_preflight: { cause: "应答了浏览器的跨域预检请求；不是失败", fix: "" },
  header_timeout: { cause: "客户端没有在 `timeouts.header` 内发完请求头", fix: "客户端较慢或有恶意" },
  idle_timeout: { cause: "在 `timeouts.idle` 内没有任何数据", fix: "" },
  bad_request: { cause: "请求违反 HTTP 规则，未被转发", fix: "详情中有具体规则" },
  misdirected: {
    cause: "请求的主机属于网关的另一个监听器，而不是其 TLS 连接所用的那个",
    fix: "客户端应为该主机另开连接；浏览器会自动这样做",
  },
  client_closed: { cause: "客户端已离开", fix: "" },
  overload: {
    cause: "达到了代理或流量策略 `limits` 的上限，或内存不足",
    fix: "详情指出是哪一个：增加工作线程、减少连接，或提高上限",
  },
  circuit_open: {
    cause: "发往该目标的请求失败或过慢的太多，因此暂时不再发送",
    fix: "查看目标的日志；代理的 `GET /endpoints`",
  },
  external_denied: {
    cause: "被询问的外部授权服务拒绝了请求",
    fix: "查看其日志；详情中有过滤器和服务的名称",
  },
  plugin_failed: {
    cause:
      "插件抛出了错误、超出了允许的时间或内存，或因连续失败暂被停用，而没有它请求不能通过；详情中有插件名、错误和行号",
    fix: "查看边车的 `tulle_plugin_calls_total` 和日志；`failOpen` 可让请求暂时通过",
  },
  external_unavailable: {
    cause: "外部授权服务无法到达、以 5xx 应答，或没有及时应答",
    fix: "它是否存在，该调用方的边车能否调用它？`failOpen` 可让请求暂时通过",
  },
  unauthenticated: {
    cause: "需要令牌而没有，或发来的令牌无效；详情说明原因",
    fix: "重新登录；检查要求令牌的策略中的密钥和签发者",
  },
  rate_limited: { cause: "请求比速率限制允许的更频繁；连接会被重置", fix: "按 `retry-after` 等待，或提高 RateLimit" },
  not_ready: {
    cause: "还没有证书或配置，或控制器不在而边车从未听说过该地址",
    fix: "`tulle check`；详情说明为何联系不上控制器",
  },
};
