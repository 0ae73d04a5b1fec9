;; The headers of `tulle+plugin`, set by a filter of the ABI that Envoy has for WebAssembly (proxy-wasm 0.2.1).
(module
  (import "env" "proxy_get_header_map_value"
    (func $get (param $map i32) (param $key i32) (param $key_size i32) (param $value i32) (param $value_size i32) (result i32)))
  (import "env" "proxy_replace_header_map_value"
    (func $replace (param $map i32) (param $key i32) (param $key_size i32) (param $value i32) (param $value_size i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) ":authority")
  (data (i32.const 16) "content-length")
  (data (i32.const 32) "x-set")
  ;; Where a value is, and its size; then what the host puts there.
  (global $top (mut i32) (i32.const 1024))
  (func (export "proxy_abi_version_0_2_1"))
  (func (export "proxy_on_memory_allocate") (param $size i32) (result i32)
    global.get $top
    (global.set $top (i32.add (global.get $top) (local.get $size))))
  (func (export "proxy_on_context_create") (param i32 i32))
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32) i32.const 1)
  (func (export "proxy_on_configure") (param i32 i32) (result i32) i32.const 1)
  ;; Sets x-set to the value of a header of the same map.
  (func $set (param $map i32) (param $key i32) (param $key_size i32)
    (global.set $top (i32.const 1024))
    (i32.store (i32.const 64) (i32.const 0))
    (i32.store (i32.const 68) (i32.const 0))
    (drop (call $get (local.get $map) (local.get $key) (local.get $key_size) (i32.const 64) (i32.const 68)))
    (drop (call $replace (local.get $map) (i32.const 32) (i32.const 5) (i32.load (i32.const 64)) (i32.load (i32.const 68)))))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (call $set (i32.const 0) (i32.const 0) (i32.const 10))
    i32.const 0)
  (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
    (call $set (i32.const 2) (i32.const 16) (i32.const 14))
    i32.const 0)
  (func (export "proxy_on_done") (param i32) (result i32) i32.const 1)
  (func (export "proxy_on_log") (param i32))
  (func (export "proxy_on_delete") (param i32)))
