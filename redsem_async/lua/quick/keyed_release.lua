-- quick release, with keys: give permits back that no request waits for, with the fewest commands.
--
-- The result is that of release. The quick path is taken when all of this is true:
--
--   1. usual_ids() finds nothing unusual
--   2. if others wait: what quick acquire with keys asks for: its 2 and 4
--
-- RETURNS  {tag}: all were held; or as release does

local function give_back_all()
  local ids, shares = usual_ids(), string.find(mode, 'share', 1, true)
  if not ids then return end
  local used, waiting, in_use = nil, 0, {}
  if call('EXISTS', queue, ramps) > 0 then
    used, waiting = usual_state(1, 2, unpack(KEYS, 7))
    if not used or not usual_keys(used, waiting) then return end
  end
  for _, text in ipairs(call('HMGET', facts, unpack(ids))) do
    local key = text and string.match(text, '^%d+:1::([^:]*)$')
    local use = key and (in_use[key] or tonumber(call('ZSCORE', uses, key)))
    if not use or waiting > 0
        and call('ZLEXCOUNT', lines, '[' .. key .. '!', '(' .. key .. '"') > 0 then
      return
    end
    in_use[key] = use - 1
  end
  -- The first write can fail, because the script may not have read this key: nothing is written then.
  call('HDEL', facts, unpack(ids))
  call('ZREM', holders, unpack(ids))
  for key, permits in pairs(in_use) do
    if permits > 0 then
      call('ZADD', uses, permits, key)
    else  -- a key that neither holds nor waits has no virtual time
      call('ZREM', uses, key)
      if shares then call('HDEL', meta, 'virtual:' .. key) end
    end
  end
  if waiting == 0 or ARGV[7] == '' then return { tag } end
  local first = call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  local reply = { tag, first and first - now or -1, waiting, {} }
  for i = 1, #ids do reply[4 + i] = 1 end
  return reply
end

local reply = give_back_all()
if reply then return reply end
