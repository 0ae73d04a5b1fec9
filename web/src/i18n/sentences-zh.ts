/**
 * What the controller says of a call (`crates/control/src/index/explain`) in Chinese. Its sentences have holes, some of which
 * hold sentences; a test asks for each sentence of its sources.
 */

/** English and Chinese, the more particular first. */
const PAIRS: [string, string][] = [
  // Policies and what they decide.
  ["{0}, but {1}", "{0}，但{1}"],
  ["allows", "允许"],
  ["denies", "拒绝"],
  ["would allow (audit only)", "会允许（仅审计）"],
  ["would deny (audit only)", "会拒绝（仅审计）"],
  ["{0}: the client's address decides", "{0}：取决于客户端地址"],
  ["does not match", "不匹配"],
  ["does not match: it refers to something that does not exist", "不匹配：它引用了不存在的对象"],
  ["does not match: allows nothing ({0})", "不匹配：它什么都不允许（{0!}）"],
  ["does not match: {0}", "不匹配：{0}"],
  ["at listener {0}: {1}", "在监听器 {0}：{1}"],
  ["at the gateway: {0}", "在网关：{0}"],
  ["no Egress lets it out", "没有 Egress 允许它出去"],
  ["no Egress lets anyone out", "没有允许任何人出去的 Egress"],
  ["{0} denies it: {1}", "{0} 拒绝了它：{1}"],
  ["{0} allows it", "{0} 允许它"],
  ["{0} lets it out", "{0} 允许它出网格"],
  ["the mesh lets everything out", "网格允许一切流量出去"],
  ["it has no sidecar, so no policy limits what it reaches", "它没有边车，因此没有策略限制它能到达哪里"],
  [
    "it has no sidecar and calls in plaintext, which a permissive mesh lets in",
    "它没有边车，以明文调用；宽松模式的网格允许",
  ],
  [
    "it has no sidecar and calls in plaintext, and mutual TLS is strict: {0}",
    "它没有边车，以明文调用，而双向 TLS 为 strict：{0}",
  ],
  ["the mesh is permissive: any identity of it may call", "网格为宽松模式：网格内的任何身份都可以调用"],
  ["no policy allows it: {0}", "没有策略允许它：{0}"],
  ["no policy is about it: {0}", "没有策略涉及它：{0}"],
  ["no policy is about this destination: {0}", "没有策略涉及这个目标：{0}"],
  ["no policy allows it", "没有策略允许它"],
  ["no policy is about it", "没有策略涉及它"],
  ["no policy is about this destination", "没有策略涉及这个目标"],
  ["{0} is not of the trust domain {1}", "{0} 不属于信任域 {1}"],
  // Demands of a policy.
  ["source not listed", "来源不在列表中"],
  ["it is for workloads of the namespace {0}", "它只针对命名空间 {0} 的工作负载"],
  ["it is for clients of certain addresses", "它只针对特定地址的客户端"],
  ["it is for callers with an identity, or of other addresses", "它针对有身份的调用方，或其他地址"],
  ["it is for HTTP requests, which TLS hides", "它针对 HTTP 请求，而 TLS 隐藏了请求"],
  ["it is for HTTP requests and the port carries raw TCP", "它针对 HTTP 请求，而该端口承载原始 TCP"],
  ["a tunnel needs the method CONNECT by name", "隧道需要明确写出方法 CONNECT"],
  ["host {0} not listed", "主机 {0} 不在列表中"],
  ["address {0} not listed", "地址 {0} 不在列表中"],
  ["the address must be in {0}", "地址必须在 {0} 之内"],
  ["port {0} not listed", "端口 {0} 不在列表中"],
  ["method {0} not listed", "方法 {0} 不在列表中"],
  ["path {0} not listed", "路径 {0!} 不在列表中"],
  ["headers decide (it needs {0})", "取决于请求头（需要 {0!}）"],
  ["headers decide (match {0} needs {1})", "取决于请求头（匹配 {0} 需要 {1!}）"],
  ["headers decide (`when: {0}`)", "取决于请求头（`when: {0!}`）"],
  ["the claims of its token decide (`when: {0}`)", "取决于其令牌的声明（`when: {0!}`）"],
  ["the host decides (it needs {0})", "取决于主机（需要 {0}）"],
  ["the condition `{0}` is not valid", "条件 `{0!}` 无效"],
  ["its condition does not hold (`when: {0}`)", "它的条件不成立（`when: {0!}`）"],
  ["its condition has no value: {0} (`when: {1}`)", "它的条件没有值：{0}（`when: {1!}`）"],
  // Answers to the caller.
  ["denied, the connection is reset", "被拒绝，连接被重置"],
  ["denied with 403", "以 403 拒绝"],
  ["the connection is reset ({0})", "连接被重置（{0}）"],
  ["the connection is reset", "连接被重置"],
  ["its connections are reset", "它的连接被重置"],
  ["its share is answered with 503", "它那一份以 503 应答"],
  ["answered with {0} ({1})", "以 {0} 应答（{1}）"],
  ["answered with {0}", "以 {0} 应答"],
  ["refused with 403 ({0})", "以 403 拒绝（{0}）"],
  ["{0}: denied, the connection is reset", "{0}：被拒绝，连接被重置"],
  ["HTTP is {0}, any other connection is reset", "HTTP {0}，其他连接被重置"],
  ["no Egress lets it out, and namespace {0} is strict: {1}", "没有 Egress 允许它出去，而命名空间 {0} 为 strict：{1}"],
  [
    "no Egress lets it out, and Mesh spec.allowEgress is false: {0}",
    "没有 Egress 允许它出去，而 Mesh 的 spec.allowEgress 为 false：{0}",
  ],
  ["no Egress lets it out: {0}", "没有 Egress 允许它出去：{0}"],
  [
    "no Egress lets anyone out, and namespace {0} is strict: {1}",
    "没有允许任何人出去的 Egress，而命名空间 {0} 为 strict：{1}",
  ],
  [
    "no Egress lets anyone out, and Mesh spec.allowEgress is false: {0}",
    "没有允许任何人出去的 Egress，而 Mesh 的 spec.allowEgress 为 false：{0}",
  ],
  ["no Egress lets anyone out: {0}", "没有允许任何人出去的 Egress：{0}"],
  ["{0}: HTTP is {1}, any other connection is reset", "{0}：HTTP {1}，其他连接被重置"],
  // Destinations.
  ["backend {0}: {1}", "后端 {0}：{1}"],
  ["service {0} does not exist: {1}", "服务 {0} 不存在：{1}"],
  ["service {0} does not exist", "服务 {0} 不存在"],
  ["service {0} has no port {1}; it has {2}", "服务 {0} 没有端口 {1}，它有 {2}"],
  ["service {0} has no port {1}: {2}", "服务 {0} 没有端口 {1}：{2}"],
  ["service {0} has no port {1}", "服务 {0} 没有端口 {1}"],
  ["service {0} has no ports", "服务 {0} 没有端口"],
  [
    "there is no service {0}: see `tulle get Workload`, in a cluster `kubectl get services`",
    "没有服务 {0}：见 `tulle get Workload`，在集群中见 `kubectl get services`",
  ],
  [
    "{0} is no workload, service, gateway or SPIFFE id of this mesh: see `tulle get Workload`, in a cluster `kubectl get pods`",
    "{0} 不是这个网格的工作负载、服务、网关或 SPIFFE 标识：见 `tulle get Workload`，在集群中见 `kubectl get pods`",
  ],
  ["it has no workload: {0}", "它没有工作负载：{0}"],
  ["no route of {0} matches {1}: {2}", "{0} 没有路由匹配 {1}：{2}"],
  ["{0} answers by itself: {1}", "{0} 自己应答：{1}"],
  ["{0} has no backend for this request: {1}", "{0} 没有用于这个请求的后端：{1}"],
  ["no backend of {0} has a weight: {1}", "{0} 的后端都没有权重：{1}"],
  ["{0} of {1} sends {2} to {3}, not to {4}", "{1} 的 {0} 把 {2} 送到 {3}，而不是 {4}"],
  ["the split of service {0}: {1}", "服务 {0} 的分流：{1}"],
  ["the split of service {0}", "服务 {0} 的分流"],
  ["service {0}", "服务 {0}"],
  ["{0} matches as well and comes later, so it does not act", "{0} 也匹配，但排在后面，所以不起作用"],
  ["no workload of the destination is ready ({0}): {1}", "目标没有就绪的工作负载（{0}）：{1}"],
  ["no workload of {0} is ready ({1}): {2}", "{0} 没有就绪的工作负载（{1}）：{2}"],
  ["through the egress gateway {0}", "经由出口网关 {0}"],
  ["as TLS, through the egress gateway {0}", "以 TLS 经由出口网关 {0}"],
  ["as TLS, directly", "以 TLS 直接"],
  ["directly", "直接"],
  ["{0} (plaintext)", "{0}（明文）"],
  // Revoked identities.
  ["{0}: every sidecar refuses its certificates", "{0}：所有边车都拒绝它的证书"],
  ["{0}: nobody connects to it", "{0}：没有人连接它"],
  ["{0} is revoked ({1})", "{0} 已吊销（{1!}）"],
  ["{0} is revoked", "{0} 已吊销"],
  // Filters, limits, times.
  ["request headers", "请求头"],
  ["response headers", "响应头"],
  ["request headers {0}", "请求头 {0}"],
  ["rewrite", "改写"],
  ["redirect {0}", "重定向 {0}"],
  ["mirror to {0}", "镜像到 {0}"],
  ["fault injection", "故障注入"],
  ["plugin {0}", "插件 {0}"],
  ["answer {0}", "应答 {0}"],
  ["{0} where `{1}`", "{0}（条件 `{1!}`）"],
  ["{0}, of connections", "{0}（按连接）"],
  ["{0}, of some requests", "{0}（部分请求）"],
  ["{0}: asks {1}", "{0}：询问 {1}"],
  ["{0}: needs a token, perhaps without expiry", "{0}：需要令牌，可以没有有效期"],
  ["{0}: needs a token", "{0}：需要令牌"],
  ["{0}: at most {1} connections at a time", "{0}：同时最多 {1} 个连接"],
  ["{0}: at most {1} requests at a time", "{0}：同时最多 {1} 个请求"],
  ["{0}: at most {1} requests that wait", "{0}：最多 {1} 个等待的请求"],
  ["{0}: at most {1} retries at a time", "{0}：同时最多 {1} 次重试"],
  ["{0}: an endpoint is left out after {1} failures in a row", "{0}：端点连续失败 {1} 次后被摘除"],
  ["{0}: circuit opens for {1} at {2} of the last {3}", "{0}：最近 {3} 中达到 {2} 时熔断 {1}"],
  ["circuit opens for {0} at {1} of the last {2}", "最近 {2} 中达到 {1} 时熔断 {0}"],
  ["{0} errors or {1}", "{0} 错误或 {1}"],
  ["{0} errors", "{0} 错误"],
  ["{0} slower than {1}", "{0} 慢于 {1}"],
  ["{0}: {1} in {2} and {3} at once", "{0}：{2} 内 {1} 个，突发 {3} 个"],
  ["none; a try may take {0}", "无；一次尝试最多 {0}"],
  ["none ({0})", "无（{0}）"],
  ["none", "无"],
  ["route", "路由"],
  ["{0} more on {1}, each try {2}", "遇到 {1} 时再试 {0} 次，每次 {2}"],
  ["{0} more on {1}", "遇到 {1} 时再试 {0} 次"],
  // Sentences that are joined, and lists.
  ["{0}; {1}", "{0}；{1}"],
  ["{0} or {1}", "{0} 或 {1}"],
  ["{0} and {1}", "{0} 和 {1}"],
  ["{0} ({1})", "{0}（{1}）"],
];

/** `{0}`; in Chinese `{0!}` where its text is somebody's own and stays as it is. */
const HOLE = /\{\d!?\}/g;

/** The English of each sentence as a pattern: a hole is as short as possible, and of several pairs the first one holds. */
const SENTENCES = PAIRS.map(([english, chinese]): [RegExp, string] => {
  const parts = english.split(HOLE).map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return [new RegExp(`^${parts.join("(.+?)")}$`), chinese];
});

/** A sentence of the controller in Chinese; what is not known stays as it is. */
export function inChinese(sentence: string): string {
  for (const [english, chinese] of SENTENCES) {
    const found = english.exec(sentence);
    if (!found) continue;
    return chinese.replace(HOLE, (hole) => {
      const text = found[Number(hole[1]) + 1] ?? "";
      return hole.endsWith("!}") ? text : inChinese(text);
    });
  }
  return sentence;
}
