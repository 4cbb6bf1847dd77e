//! `/v1/completions` beyond plain answers: echo, log-probabilities, choices.

use super::*;

fn hashing() -> Arc<App> {
    app_with(Box::new(|history| Ok(engine::toy::hashed(VOCAB, history))))
}

/// The text of every choice, put together from a stream, and the columns of its log-probabilities.
fn joined(reply: &Reply, n: usize) -> Vec<(String, Value)> {
    let keys = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    let mut all =
        vec![(String::new(), json!({"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []})); n];
    let events = reply.events();
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).unwrap();
        let Some(choice) = chunk["choices"].get(0) else { continue };
        let (text, columns) = &mut all[choice["index"].as_u64().unwrap() as usize];
        text.push_str(choice["text"].as_str().unwrap());
        for key in keys {
            let more = choice["logprobs"][key].as_array().cloned().unwrap_or_default();
            columns[key].as_array_mut().unwrap().extend(more);
        }
    }
    all
}

#[tokio::test]
async fn echo_and_logprobs_cover_prompt_and_answer() {
    let app = hashing();
    let prompt = "def main(argv): return 東京 plus twelve more words, so that it is read in several pieces";
    let prompt_tokens = TEXT.tokenizer.encode(prompt, true).unwrap().len();
    // The toy reads 64 rows a step and scores at most 4 of them: the prompt is read in pieces.
    assert!(prompt_tokens > 8);
    let body = json!({"prompt": prompt, "echo": true, "logprobs": 2, "max_tokens": 3, "temperature": 0});
    let reply = post(&app, TEXTS, body.clone()).await.json();
    let choice = &reply["choices"][0];
    let text = choice["text"].as_str().unwrap();
    assert!(text.starts_with(prompt), "{text}");
    let columns = &choice["logprobs"];
    let list = |key: &str| columns[key].as_array().unwrap().clone();
    let n = prompt_tokens + reply["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(list(key).len(), n, "{key}");
    }
    assert!(list("token_logprobs")[0].is_null() && list("top_logprobs")[0].is_null());
    assert!(list("token_logprobs")[1..].iter().all(|x| x.as_f64().is_some_and(|x| x < 0.0)));
    assert!(list("top_logprobs")[1..].iter().all(|top| !top.as_object().unwrap().is_empty()));
    let offsets: Vec<u64> = list("text_offset").iter().map(|x| x.as_u64().unwrap()).collect();
    assert!(offsets[0] == 0 && offsets.windows(2).all(|w| w[0] <= w[1]));
    assert_eq!(offsets[prompt_tokens], prompt.chars().count() as u64);
    // The scores are those of the model: what it says after each beginning of the prompt.
    let ids = TEXT.tokenizer.encode(prompt, true).unwrap();
    for (i, logprob) in list("token_logprobs").iter().enumerate().take(prompt_tokens).skip(1) {
        let score = engine::score(&engine::toy::hashed(VOCAB, &ids[..i]), ids[i], 0, &[]).unwrap();
        assert_eq!(logprob.as_f64().unwrap() as f32, score.logprob.unwrap(), "token {i}");
    }
    let stream = post(&app, TEXTS, with(body, json!({"stream": true}))).await;
    assert_eq!(joined(&stream, 1), [(text.to_owned(), columns.clone())]);
}

#[tokio::test]
async fn a_prompt_can_be_scored_without_an_answer() {
    let app = hashing();
    for logprobs in [json!(null), json!(0)] {
        let body = json!({"prompt": ["A b c", [5, 6, 7]], "echo": true, "max_tokens": 0, "logprobs": logprobs});
        let reply = post(&app, TEXTS, body).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
        let reply = reply.json();
        assert_eq!((&reply["usage"]["completion_tokens"], &reply["choices"][0]["text"]), (&json!(0), &json!("A b c")));
        assert_eq!(reply["choices"][1]["finish_reason"], "length");
        assert_eq!(reply["choices"][1]["logprobs"]["tokens"].as_array().map(Vec::len), logprobs.as_u64().map(|_| 3));
    }
}

#[tokio::test]
async fn prompts_and_choices_come_in_prompt_major_order() {
    let app = hashing();
    let body = json!({"prompt": ["A", "B"], "n": 2, "max_tokens": 4, "temperature": 1, "seed": 3, "best_of": 2});
    let reply = post(&app, TEXTS, body.clone()).await.json();
    let texts: Vec<String> =
        reply["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(texts.len(), 4);
    assert_eq!(reply["usage"]["prompt_tokens"], 2);
    for (i, prompt) in ["A", "B"].iter().enumerate() {
        let one = json!({"prompt": prompt, "max_tokens": 4, "temperature": 1, "seed": 3});
        assert_eq!(post(&app, TEXTS, one).await.json()["choices"][0]["text"], texts[2 * i]);
    }
    let stream = post(&app, TEXTS, with(body, json!({"stream": true}))).await;
    assert_eq!(joined(&stream, 4).into_iter().map(|(text, _)| text).collect::<Vec<_>>(), texts);
}

#[tokio::test]
async fn untouched_logprobs_do_not_see_bias_and_temperature() {
    let model = || -> engine::toy::Model { Box::new(|history| Ok(engine::toy::hashed(VOCAB, history))) };
    let body = json!({"prompt": "A", "max_tokens": 1, "logprobs": 0, "temperature": 0.5, "logit_bias": {"9": 50}});
    let logprob = async |options: Options| {
        let reply = post(&app_with_options(model(), options), TEXTS, body.clone()).await.json();
        assert_eq!(reply["choices"][0]["logprobs"]["tokens"][0], TEXT.tokenizer.decode(&[9], false).unwrap());
        reply["choices"][0]["logprobs"]["token_logprobs"][0].as_f64().unwrap()
    };
    assert!(logprob(free()).await > -0.01);
    assert!(logprob(Options { untouched_logprobs: true, ..free() }).await < -1.0);
}
