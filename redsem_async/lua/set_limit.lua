-- set_limit: set or delete the limit that overrides the limit of every client.
--
-- KEYS     as in the head
-- ARGV     new_limit  the limit, '' for none; 'pause' for 0 until 'resume', which gives back the
--                     limit that the pause found
--          number     number of this operation, which runs at most once
--          [key]      whose limit it is, unless it is the overall limit
-- RETURNS  {tag, next_ms, waiting, own_grants}
-- USES     load_state, already_ran, limit_in, note_call, waiting, purge,
--          serve, reply_head, keyed, return_parked, fields, exact
--          sets set_limit

local new_limit, number, key = ARGV[5], tonumber(ARGV[6]), ARGV[7]

-- The value of the key limit after a pause, or after a resume, where it was *before*; '' for none.
local function paused_or_resumed(before)
  local paused = limit_in(before) == 0
  if new_limit == 'pause' then
    return paused and before or before and '0 ' .. before or '0'
  end
  return paused and string.match(before, ' (%d+)') or not paused and before or ''
end

load_state()
if not already_ran(number, 'changes') then
  if new_limit == 'pause' or new_limit == 'resume' then
    new_limit = paused_or_resumed(call('GET', limit))
  end
  if key then
    keyed.set_limit(key, new_limit)
  elseif new_limit == '' then
    call('DEL', limit)
  else
    call('SET', limit, new_limit)
  end
  if not key then
    set_limit = limit_in(new_limit)
    fields[15] = set_limit and exact(set_limit)
    if set_limit then
      call('HSET', meta, 'limit', fields[15])
    else
      call('HDEL', meta, 'limit')
    end
  end
  note_call(number, 'changes')
  if waiting > 0 then return_parked() end  -- one that was heavier than the old limit may fit now
end
purge()
serve()
return reply_head()
