/** Causes, effects and cures of findings in Chinese; a test asks for each code of `docs/findings.md`. */

export interface FindingText {
  cause: string;
  effect: string;
  fix: string;
}

export const chinese: Record<string, FindingText> = {
  TL0001: {
    cause: "同一种类的两个对象重名，并指出两者的文件和行号",
    effect: "什么都不会应用",
    fix: "改名或删除其中一个",
  },
  TL0002: { cause: "有两个 Mesh 对象", effect: "什么都不会应用", fix: "删除其中一个" },
  TL0010: {
    cause: "引用了一个没有任何工作负载的服务",
    effect: "发往它的请求会失败",
    fix: "更正名称，或添加 Workload",
  },
  TL0011: {
    cause: "服务没有这个端口",
    effect: "发往它的请求会失败",
    fix: "使用列出的端口之一，或把它加入 Workload",
  },
  TL0012: {
    cause: "路由引用的 Gateway 不存在",
    effect: "路由不起作用",
    fix: "更正名称，或添加该 Gateway",
  },
  TL0013: {
    cause:
      "路由引用的监听器不存在，或它接受的是其他种类的路由：HTTPRoute 和 GRPCRoute 需要 HTTP 或 HTTPS，TLSRoute 需要 `Passthrough` 的 TLS，TCPRoute 需要 TCP 或在网关终止的 TLS",
    effect: "路由在那里不起作用",
    fix: "更正 `sectionName` 或 `port`，或监听器的 `protocol`",
  },
  TL0014: {
    cause: "HTTPRouteGroup 或其中的某个匹配不存在",
    effect: "引用它的对象什么也不放行，或什么也不拆分",
    fix: "更正名称，或添加该组",
  },
  TL0015: { cause: "SMI 的 TCPRoute 不存在", effect: "该规则什么也不放行", fix: "更正名称，或添加它" },
  TL0016: {
    cause: "HTTPFilter 或 Plugin 不存在",
    effect: "该规则的请求以 500 应答",
    fix: "更正名称，或添加该过滤器",
  },
  TL0017: {
    cause: "Secret 或 ConfigMap 不存在，或缺少要读取的键",
    effect: "监听器不提供服务，到它的连接被重置；不接受任何令牌；Egress 什么也不放行",
    fix: "应用带有所述键的对象",
  },
  TL0018: {
    cause: "没有工作负载或网关具有所述身份",
    effect: "它不会放行任何人",
    fix: "更正名称；身份取自 Workload 的 `identity`，没有时取其服务名",
  },
  TL0020: {
    cause: "同一服务的副本给同一端口指定了不同的协议",
    effect: "以名称排在最前的为准",
    fix: "给它们相同的 `appProtocol`",
  },
  TL0021: {
    cause: "一个工作负载和一个网关具有同一身份",
    effect: "策略无法区分两者",
    fix: "给其中一个改名",
  },
  TL0022: {
    cause: "Gateway 属于另一个类",
    effect: "Tulle 不为它提供服务",
    fix: "设 `gatewayClassName: tulle`，或留给其他实现",
  },
  TL0023: {
    cause: "两个 Gateway 监听同一地址和端口",
    effect: "只有一个能够监听",
    fix: "更改端口或地址",
  },
  TL0024: {
    cause: "Gateway 的名称不是 DNS 标签：含有点，或超过 63 个字符（在集群中可以）",
    effect: "什么都不会应用",
    fix: "改名",
  },
  TL0030: {
    cause: "两条路由对同一主机和同一父对象有相同的匹配",
    effect: "按种类和名称排在最前的生效",
    fix: "让两者的匹配不同，或删除其中一条",
  },
  TL0031: {
    cause: "同一路由中更早的规则有相同的匹配",
    effect: "后一条永远不会生效",
    fix: "删除它，或让它更具体",
  },
  TL0032: {
    cause: "规则既没有带权重的后端，也没有会应答的过滤器",
    effect: "每个请求都以 500 应答，这是 Gateway API 及其一致性测试的要求",
    fix: "添加一个后端，或给一个后端设权重",
  },
  TL0033: {
    cause: "服务没有就绪的工作负载；只有 `tulle check` 和 `tulle why` 会在运行中的网格里发现它",
    effect: "发往它的请求以 503（`no_endpoint`）应答",
    fix: "用 `tulle status` 和其工作负载的 `tulle logs` 查看原因",
  },
  TL0040: {
    cause: "两个 TrafficPolicy 针对同一服务和端口，或两个 TrafficSplit 针对同一服务",
    effect: "以名称排在最前的为准",
    fix: "合并为一个",
  },
  TL0041: {
    cause: "Mesh 的设置（`permissiveMode`、`allowEgress`）使该对象多余",
    effect: "它被忽略",
    fix: "删除它，或关闭该设置",
  },
  TL0042: { cause: "限额为 0", effect: "一切都被拒绝", fix: "提高限额；要拒绝请使用 AuthorizationPolicy" },
  TL0043: {
    cause: "重试没有指定条件",
    effect: "只有无法建立的连接才会重试",
    fix: "添加 `on`、`codes` 或 `grpcCodes`",
  },
  TL0044: {
    cause: "策略引用的服务、网关或路由，或其中的端口、监听器或规则不存在",
    effect: "它不针对任何东西",
    fix: "更正名称、端口或 `sectionName`",
  },
  TL0045: {
    cause: "针对 HTTP 的策略指向了承载不透明字节的端口",
    effect: "它不起作用",
    fix: "更正 `appProtocol` 或目标",
  },
  TL0046: {
    cause: "AuthorizationPolicy 针对附加到服务的路由：那样调用方只会约束自己",
    effect: "什么都不会应用",
    fix: "以该 Service 为目标，把请求写在 `to` 中",
  },
  TL0047: {
    cause:
      "AuthorizationPolicy 按路径拒绝，或 RateLimit 按路径限流，却没有说明是否区分大小写；或 HTTPRoute 规则的过滤器（令牌、外部授权、限流）所管的路径，以其他大小写会落到没有这些过滤器的另一条规则",
    effect: "忽略大小写的应用（Spring MVC、ASP.NET）会在 `/admin` 被拒绝时应答 `/ADMIN`",
    fix: "在规则中设 `ignoreCase: true`，若应用的路径区分大小写则设 `false`；在路由中用带 `(?i)` 的 RegularExpression，或让所有规则有相同的过滤器",
  },
  TL0048: {
    cause: "Gateway 监听器用于终止 TLS 的证书、密钥或 `ca.crt` 不可用：密钥与证书不配，或其中之一不是 PEM",
    effect: "什么都不会应用；若仍被存储，该监听器继续使用原有证书，没有则不接受任何人",
    fix: "一起更换两者：`tls.crt` 为证书链，服务器自己的证书在最前；`tls.key` 为其密钥",
  },
  TL0049: { cause: "监听器的证书已过期", effect: "客户端拒绝它", fix: "更换证书" },
  TL0050: {
    cause:
      "没有策略允许路由的调用方调用其某个后端：对 Gateway 的路由来说是该 Gateway，对 Service 的路由或拆分来说是任何人。不比较方法和路径，`tulle why` 会比较",
    effect: "该后端所占的请求以 403 应答，其连接被重置",
    fix: "添加允许这些调用方的 AuthorizationPolicy 或 TrafficTarget",
  },
  TL0051: {
    cause:
      "最近 15 分钟内的调用现在是允许的，而这些清单会拒绝它们；只有 `tulle apply --dry-run` 会在代理向控制器报告的网格里发现它",
    effect: "从那时起，所述调用方以 403 应答",
    fix: "把这些调用方加入策略，或照此应用：不比较方法、路径和端口",
  },
};
