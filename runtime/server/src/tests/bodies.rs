//! Requests as the clients of the day write them, with all that they send besides: fields that change nothing must not
//! break anything.

use super::weave::RESPONSES;
use super::*;

/// What a coding agent's tools look like.
fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "cmd": {"type": "string", "description": "The command line."},
            "workdir": {"type": ["string", "null"], "description": "Where to run it."},
            "yield_time_ms": {"type": "number", "description": "How long to wait."},
            "todos": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"content": {"type": "string", "minLength": 1}, "status": {"enum": ["pending", "completed"]}},
                    "required": ["content", "status"],
                    "additionalProperties": false,
                },
            },
        },
        "required": ["cmd"],
        "additionalProperties": false,
    })
}

/// Sends a request in both forms; both are answered.
async fn answered(path: &str, body: Value) {
    for turn_grammar in [false, true] {
        let app = app_with_options(super::held::rambling(), Options { turn_grammar, ..Options::default() });
        for stream in [false, true] {
            let reply = post(&app, path, with(body.clone(), json!({"stream": stream}))).await;
            let said = String::from_utf8_lossy(&reply.body);
            assert_eq!(reply.status, StatusCode::OK, "{said}: {body}");
            assert!(!said.contains("\"error\":{"), "{said}");
        }
    }
}

#[tokio::test]
async fn chats_with_every_field_of_the_official_client() {
    let function = json!({"name": "exec_command", "description": "Runs it.", "parameters": schema(), "strict": false});
    answered(
        CHAT,
        json!({
            "model": "toy",
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "name": "someone", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
                {
                    "role": "assistant", "content": null, "refusal": null, "audio": null, "function_call": null, "annotations": [],
                    "reasoning_content": "Hm.", "provider_specific_fields": {"refusal": null},
                    "thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}],
                    "tool_calls": [{"id": "call_1", "index": 0, "type": "function", "function": {"name": "exec_command", "arguments": "{\"cmd\":\"ls\"}"}}],
                },
                {"role": "tool", "tool_call_id": "call_1", "name": "exec_command", "content": [{"type": "text", "text": "a.txt"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "A file."}, {"type": "refusal", "refusal": "No."}]},
                {"role": "user", "content": "Thanks."},
            ],
            "tools": [{"type": "function", "function": function, "cache_control": {"type": "ephemeral"}}],
            "tool_choice": "auto", "parallel_tool_calls": true, "functions": null, "function_call": null,
            "temperature": 1, "top_p": 1, "n": 1, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "seed": 1,
            "logprobs": false, "top_logprobs": null, "max_completion_tokens": 12, "max_tokens": null, "stop": null,
            "stream_options": {"include_usage": false, "include_obfuscation": false}, "response_format": {"type": "text"},
            "reasoning_effort": "medium", "verbosity": "medium", "modalities": ["text"], "audio": null, "prediction": null,
            "metadata": {"a": "b"}, "store": false, "user": "u", "safety_identifier": "s", "service_tier": "auto",
            "prompt_cache_key": "k", "prompt_cache_retention": "24h", "web_search_options": null, "moderation": null,
        }),
    )
    .await;
}

#[tokio::test]
async fn messages_as_a_coding_agent_sends_them() {
    let cached = json!({"type": "ephemeral", "ttl": "1h"});
    let body = json!({
        "model": "toy",
        "max_tokens": 12,
        "system": [
            {"type": "text", "text": "You are an agent.", "cache_control": cached},
            {"type": "text", "text": "Rules.", "citations": null},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<reminder>\nx\n</reminder>"}, {"type": "text", "text": "Hi", "cache_control": cached}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "ErUB"},
                {"type": "text", "text": "I look.", "citations": null},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"cmd": "ls"}, "caller": {"type": "direct"}, "cache_control": cached},
                {"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a.txt"}], "is_error": false, "cache_control": cached},
                {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": true},
                {"type": "text", "text": "Go on."},
            ]},
        ],
        "tools": [
            {"name": "Bash", "description": "Runs it.", "input_schema": schema(), "cache_control": cached, "eager_input_streaming": true},
            {"type": "custom", "name": "Other", "input_schema": {"type": "object"}, "defer_loading": false, "allowed_callers": ["direct"], "input_examples": [{}]},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": false},
        "metadata": {"user_id": "user_1_account__session_2"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "temperature": 1, "stop_sequences": [], "service_tier": "auto", "inference_geo": null, "container": null, "mcp_servers": [],
        "cache_control": {"type": "ephemeral"}, "speed": "standard",
    });
    answered("/v1/messages?beta=true", body.clone()).await;
    let app = app(ANSWER);
    let counted = post(&app, "/v1/messages/count_tokens?beta=true", body).await;
    assert!(counted.json()["input_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn responses_as_a_coding_agent_sends_them() {
    let patch = "start: begin_patch hunk+ end_patch\nbegin_patch: \"*** Begin Patch\" LF\nend_patch: \"*** End Patch\" LF?\n\n\
        hunk: add_hunk | delete_hunk\nadd_hunk: \"*** Add File: \" filename LF add_line+\n\
        delete_hunk: \"*** Delete File: \" filename LF\nfilename: /(.+)/\nadd_line: \"+\" /(.*)/ LF -> line\n\n%import common.LF\n";
    let tools = json!([
        {"type": "function", "name": "exec_command", "description": "Runs it.", "strict": false, "parameters": schema()},
        {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "grammar", "syntax": "lark", "definition": patch}},
        {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [
            {"type": "function", "name": "read", "description": "Reads.", "strict": false, "parameters": {"type": "object", "properties": {}}, "defer_loading": false},
        ]},
    ]);
    let text = |kind: &str, text: &str| json!([{"type": kind, "text": text}]);
    answered(
        RESPONSES,
        json!({
            "model": "toy",
            "instructions": "You are an agent.",
            "input": [
                {"type": "message", "role": "developer", "content": text("input_text", "Rules.")},
                {"type": "message", "role": "user", "content": text("input_text", "Hi"), "id": null},
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}], "content": null, "encrypted_content": "gAAAAABo", "status": null},
                {"type": "message", "role": "assistant", "content": text("output_text", "I look."), "phase": "commentary", "end_turn": null},
                {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "exec_command", "arguments": "{\"cmd\":\"ls\"}"},
                {"type": "function_call_output", "call_id": "call_1", "output": text("input_text", "a.txt")},
                {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin Patch\n*** End Patch\n", "status": "completed"},
                {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done."},
                {"type": "function_call", "call_id": "call_3", "namespace": "mcp__files", "name": "read", "arguments": ""},
                {"type": "function_call_output", "call_id": "call_3", "output": "", "status": "completed"},
            ],
            "tools": tools, "tool_choice": "auto", "parallel_tool_calls": false, "max_tool_calls": null, "max_output_tokens": 12,
            "reasoning": {"effort": "medium", "summary": "auto", "generate_summary": null, "encrypted_content": null},
            "text": {"format": {"type": "text"}, "verbosity": "low"}, "include": ["reasoning.encrypted_content"],
            "store": false, "background": false, "conversation": null, "prompt": null, "previous_response_id": null,
            "stream_options": {"include_obfuscation": false}, "top_logprobs": 0, "truncation": "disabled", "metadata": null,
            "prompt_cache_key": "k", "prompt_cache_retention": "in_memory", "safety_identifier": "s", "service_tier": "auto", "user": "u",
            "temperature": 1, "top_p": 1, "client_metadata": {"installation": "1"}, "context_management": null, "moderation": null,
        }),
    )
    .await;
}
