-- Counts the commands of a script, and refuses some: ARGV ends with the time in us, and with which.
local redis, reported = (function(real, refused, us)
  local names, muted = {}, false
  local writes = { HSET = 1, HDEL = 1, ZADD = 1, ZREM = 1, PEXPIRE = 1, SET = 1, DEL = 1, UNLINK = 1 }
  local function guarded(how)
    return function(name, ...)
      names[#names + 1] = name
      if refused == name or tonumber(refused) == #names or refused == 'writes' and writes[name]
          or muted and name ~= 'PUBLISH' then
        return real[how]('REFUSED')  -- which no server knows
      end
      if name == 'TIME' then return { math.floor(us / 1000000), us % 1000000 } end
      local said = real[how](name == 'PEXPIRETIME' and 'PTTL' or name, ...)
      return name == 'PEXPIRETIME' and said >= 0 and math.floor(us / 1000) + said or said
    end
  end
  local function set_repl(what)
    assert(refused ~= 'set_repl')
    muted = what == 0
    if real.set_repl then real.set_repl(what) end
  end
  local ours = {
    call = guarded('call'), pcall = guarded('pcall'), set_repl = set_repl, REPL_NONE = 0, REPL_ALL = 3,
  }
  return setmetatable(ours, { __index = real }), function(reply)
    return type(reply) == 'table' and reply.err and reply or { reply, refused == '' and names or {} }
  end
end)(redis, table.remove(ARGV), table.remove(ARGV))
return reported((function()
--[[ the script stands here ]]
end)())
